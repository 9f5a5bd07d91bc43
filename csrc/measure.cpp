// Norms and scaling of lists of tensors; sums in an order that depends only on the tensors' sizes.
#include "measure.h"

#include <algorithm>
#include <cmath>

#include "schedule.h"
#include "stage.h"

namespace ingot {

namespace {

// Calls visit(span) for every tile of a task, the last word on which elements one kernel call sees.
template <class Visit>
void for_tiles(const Table& table, const Task& task, Visit visit) {
  for (int64_t i = task.tensor; i < task.last; ++i) {
    const Tensor& tensor = table.tensors[i];
    const int64_t end = task.end > 0 ? task.end : tensor.count();
    for (int64_t begin = task.begin; begin < end; begin += kTile) visit(Span{i, begin, std::min(kTile, end - begin)});
  }
}

// One number per task, combined in the order of the tasks; the tasks depend on the sizes alone.
template <class OfTile, class Combine>
double reduce(const Table& table, const Kernels& kernels, OfTile of_tile, Combine combine) {
  int64_t elements = 0;
  const std::vector<Task> tasks = stretches(table, &elements);
  std::vector<double> partials(tasks.size());
  share(static_cast<int64_t>(tasks.size()), elements, [&](int64_t number) {
    Stage stage(table, kernels);
    double partial = 0;
    for_tiles(table, tasks[number], [&](const Span& span) {
      stage.load(span, kGradBit);
      partial = combine(partial, of_tile(table.tensors[span.tensor].wide, stage.block().grad, span.count));
    });
    partials[number] = partial;
  });
  double result = 0;
  for (const double partial : partials) result = combine(result, partial);
  return result;
}

}  // namespace

double sum_of_squares(const Table& table, const Kernels& kernels) {
  return reduce(
      table, kernels, [&](bool wide, const void* x, int64_t count) { return kernels.squares[wide](x, count); },
      [](double a, double b) { return a + b; });
}

double largest_magnitude(const Table& table, const Kernels& kernels) {
  return reduce(
      table, kernels, [&](bool wide, const void* x, int64_t count) { return kernels.largest[wide](x, count); },
      [](double a, double b) { return std::isnan(a) || a > b ? a : b; });
}

void scale(const Table& table, const Kernels& kernels, double factor) {
  int64_t elements = 0;
  const std::vector<Task> tasks = stretches(table, &elements);
  share(static_cast<int64_t>(tasks.size()), elements, [&](int64_t number) {
    Stage stage(table, kernels);
    for_tiles(table, tasks[number], [&](const Span& span) {
      stage.load(span, kParamBit);
      kernels.scale[table.tensors[span.tensor].wide](stage.block().param, span.count, factor);
      stage.store(span, kParamBit);
    });
  });
}

void touch(const std::vector<FloorEntry>& entries, int reads, int writes, const Kernels& kernels) {
  struct Piece {
    int64_t entry, begin, words;
  };
  std::vector<Piece> pieces;
  int64_t total = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(entries.size()); ++i) {
    for (int64_t begin = 0; begin < entries[i].words; begin += kStretch) {
      pieces.push_back({i, begin, std::min(kStretch, entries[i].words - begin)});
    }
    total += entries[i].words;
  }
  share(static_cast<int64_t>(pieces.size()), total, [&](int64_t number) {
    const Piece& piece = pieces[number];
    Streams streams = entries[piece.entry].streams;
    for (int k = 0; k < reads; ++k) streams.read[k] += piece.begin;
    for (int k = 0; k < writes; ++k) streams.write[k] += piece.begin;
    kernels.floor[reads][writes](streams, piece.words, 0);
  });
}

}  // namespace ingot
