// Elementwise optimizers: one sweep over every tensor.
#include "step.h"

#include <algorithm>

namespace ingot {

ParallelFor parallel_for = nullptr;

namespace {

constexpr int64_t kStretch = 1 << 16;  // elements of a large tensor per task; 64 K to 256 K measure alike
constexpr int64_t kMostTasks = 4096;   // keeps the list of tasks small for the largest models
constexpr int64_t kGroup = 1 << 14;    // small tensors are grouped until they hold this many elements

}  // namespace

Step::Step(const Table& table, const Kernels& kernels, const StepScalars& scalars)
    : table_(table), kernels_(kernels), variant_(kernels.variants[table.variant]), scalars_(scalars) {}

void Step::run() {
  if (variant_.two_pass) run_two_pass();
  else run_elementwise();
}

std::vector<Task> make_tasks(const Table& table, int64_t* total) {
  int64_t elements = 0;
  for (const Tensor& tensor : table.tensors) elements += tensor.count();
  const int64_t stretch = std::max(kStretch, (elements / kMostTasks + kTile - 1) / kTile * kTile);
  std::vector<Task> tasks;
  int64_t grouped = kGroup;
  for (int64_t i = 0; i < static_cast<int64_t>(table.tensors.size()); ++i) {
    const int64_t count = table.tensors[i].count();
    if (count > stretch) {
      for (int64_t begin = 0; begin < count; begin += stretch) {
        tasks.push_back({i, i + 1, begin, std::min(begin + stretch, count)});
      }
      grouped = kGroup;
    } else if (grouped < kGroup) {
      tasks.back().last = i + 1;
      grouped += count;
    } else {
      tasks.push_back({i, i + 1, 0, -1});
      grouped = count;
    }
  }
  *total = elements;
  return tasks;
}

void Step::run_elementwise() {
  int64_t elements = 0;
  const std::vector<Task> tasks = make_tasks(table_, &elements);
  share(static_cast<int64_t>(tasks.size()), elements, [&](int64_t number) {
    Stage stage(table_, kernels_);
    const Task& task = tasks[number];
    if (task.end >= 0) {
      step_elements(stage, task.tensor, task.begin, task.end);
      return;
    }
    for (int64_t i = task.tensor; i < task.last; ++i) step_elements(stage, i, 0, table_.tensors[i].count());
  });
}

void Step::step_elements(Stage& stage, int64_t tensor, int64_t begin, int64_t end) const {
  constexpr unsigned kAll = kParamBit | kGradBit | kStateBits;
  const Math& math = this->math(tensor);
  const int64_t most = table_.tensors[tensor].direct ? end - begin : kTile;
  for (; begin < end; begin += most) {
    const Span span = {tensor, begin, std::min(most, end - begin)};
    stage.load(span, kAll);
    if (table_.rounded_states) {
      math.advance(stage.block(), span.count, scalars_);
      stage.store_and_reload_states(span);
      // keep and rate are the first two scalars of an elementwise optimizer.
      math.apply(stage.block(), 1, span.count, scalars_, &scalars_.wide[0], &scalars_.wide[1]);
      stage.store(span, kParamBit);
    } else {
      math.step(stage.block(), span.count, scalars_);
      stage.store(span, kParamBit | kStateBits);
    }
  }
}

}  // namespace ingot
