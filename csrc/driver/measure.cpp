// Norms and scaling of lists of tensors. Sums are added up in an order that depends on the tensors' sizes and on the memory order
// of their leaders (see table.cpp) alone.
#include "measure.h"

#include <algorithm>
#include <cmath>

#include "schedule.h"
#include "stage.h"

namespace ingot {

namespace {

// Calls visit(span) for the elements of a task, in stretches that a stage can hold.
template <class Visit>
void for_spans(const Table& table, const Task& task, Visit visit) {
  for (int64_t i = task.tensor; i < task.last; ++i) {
    const Tensor& tensor = table.tensors[i];
    const int64_t end = task.end > 0 ? task.end : tensor.count();
    const int64_t most = tensor.direct ? end : kTile;
    for (int64_t begin = task.begin; begin < end; begin += most) visit(Span{i, begin, std::min(most, end - begin)});
  }
}

// One number per task. How work is cut into tasks depends on the sizes of the tensors alone.
template <class OfTask>
void measure_tasks(const Job* begin, const Job* end, OfTask of_task) {
  share_jobs(begin, end, [&](const Job& job, int64_t number) {
    job.table->partials[number] = of_task(*job.table, job.table->tasks[number]);
  });
}

// They are combined in the order of the tasks.
template <class Combine>
double combine_tasks(const Table& table, Combine combine) {
  double result = 0;
  for (size_t i = 0; i < table.tasks.size(); ++i) result = combine(result, table.partials[i]);
  return result;
}

// Halves of the lanes are added until one is left.
double fold(double* lanes) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

}  // namespace

void sums_of_squares(const Job* begin, const Job* end, const Kernels& kernels, double* sums) {
  measure_tasks(begin, end, [&](const Table& table, const Task& task) {
    Stage stage(table, kernels);
    double lanes[kLanes] = {};
    for_spans(table, task, [&](const Span& span) {
      stage.load(span, kGradBit);
      kernels.squares[table.tensors[span.tensor].wide](stage.slice().grad, span.count, lanes);
    });
    return fold(lanes);
  });
  for (const Job* job = begin; job != end; ++job) *sums++ = combine_tasks(*job->table, [](double a, double b) { return a + b; });
}

double sum_of_squares(const Table& table, const Kernels& kernels) {
  const Job job = {&table, nullptr};
  double result;
  sums_of_squares(&job, &job + 1, kernels, &result);
  return result;
}

double largest_magnitude(const Table& table, const Kernels& kernels) {
  const auto larger = [](double a, double b) { return std::isnan(a) || a > b ? a : b; };
  const Job job = {&table, nullptr};
  measure_tasks(&job, &job + 1, [&](const Table& table, const Task& task) {
    Stage stage(table, kernels);
    double result = 0;
    for_spans(table, task, [&](const Span& span) {
      stage.load(span, kGradBit);
      result = larger(result, kernels.largest[table.tensors[span.tensor].wide](stage.slice().grad, span.count));
    });
    return result;
  });
  return combine_tasks(table, larger);
}

void scale(const Table& table, const Kernels& kernels, double factor) {
  share(static_cast<int64_t>(table.tasks.size()), table.elements, [&](int64_t number) {
    Stage stage(table, kernels);
    for_spans(table, table.tasks[number], [&](const Span& span) {
      stage.load(span, kParamBit);
      kernels.scale[table.tensors[span.tensor].wide](stage.slice().param, span.count, factor);
      stage.store(span, kParamBit);
    });
  });
}

}  // namespace ingot
