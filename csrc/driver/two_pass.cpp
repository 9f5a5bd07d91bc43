// Two-pass optimizers. Large tensors: both passes over units, in parallel. Small ones: one thread does both, in cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "step.h"

namespace ingot {
namespace {

constexpr int64_t kUnit = 1 << 16;  // elements; four float32 operands of a unit fit a cache of 1 MB

// How many rows it takes to fill whole blocks: one, unless states are codes.
int64_t whole_rows(const Tensor& tensor) { return tensor.coded ? kBlock / std::gcd(kBlock, tensor.length) : 1; }

// Units are whole rows, unless rows are longer than a unit; and whole blocks, so that no block belongs to two threads.
bool is_long(const Tensor& tensor) { return tensor.length > kUnit && (tensor.rows == 1 || whole_rows(tensor) == 1); }
int64_t rows_of_unit(const Tensor& tensor) {
  const int64_t whole = whole_rows(tensor);
  return std::max<int64_t>(kUnit / tensor.length / whole, 1) * whole;
}
int64_t pieces_of_row(const Tensor& tensor) { return is_long(tensor) ? divide_up(tensor.length, kUnit) : 1; }

// Tensors with fewer than two dimensions have no rows to project: infinite, as ingot.declare.spec.Sums says.
double root(const Tensor& tensor, int64_t count) {
  return tensor.has_rows ? std::sqrt(static_cast<double>(count)) : std::numeric_limits<double>::infinity();
}

}  // namespace

int64_t TwoPass::units_of(int64_t index) const {
  const Tensor& t = tensor(index);
  if (t.count() == 0) return 0;
  return is_long(t) ? t.rows * pieces_of_row(t) : divide_up(t.rows, rows_of_unit(t));
}

TwoPass::Part TwoPass::unit_of(int64_t index, int64_t number) const {
  const Tensor& t = tensor(index);
  if (is_long(t)) {
    const int64_t column = number % pieces_of_row(t) * kUnit;
    return {index, number / pieces_of_row(t), 1, column, std::min(kUnit, t.length - column)};
  }
  const int64_t rows = rows_of_unit(t), row = number * rows;
  return {index, row, std::min(rows, t.rows - row), 0, t.length};
}

Span TwoPass::span_of(const Part& batch) const {
  const int64_t length = tensor(batch.tensor).length;
  return {batch.tensor, batch.row * length + batch.column, batch.rows * batch.columns};
}

// How many numbers it takes to keep the sums of rows that the second pass needs. Long rows need none: their sums follow from the
// partial sums of the units.
int64_t TwoPass::kept_size(int64_t index) const {
  const Tensor& t = tensor(index);
  if (t.rows <= 1 || is_long(t)) return 0;
  int64_t sums = 0;
  for (int k = 0; k < kSums; ++k) sums += variant_.row_sums >> k & 1u;
  return sums * t.rows;
}

// Calls `visit(k, of_rows)` for every sum k that `finish` reads of a row; `of_rows` is where those of the batch are kept.
template <class Visit>
void TwoPass::for_kept_sums(const Part& batch, double* kept, Visit visit) const {
  double* of_rows = kept + batch.row;
  for (int k = 0; k < kSums; ++k) {
    if (!(variant_.row_sums >> k & 1u)) continue;
    visit(k, of_rows);
    of_rows += tensor(batch.tensor).rows;
  }
}

Partial TwoPass::sum_unit(Stage& stage, const Part& unit, double* kept, float* updates) const {
  const Tensor& t = tensor(unit.tensor);
  Partial partial = {};
  for_batches(unit, [&](const Part& batch) {
    RowSums sums;
    double scores[kTileRows];
    advance_and_sum(stage, batch, sums, updates);
    variant_.score(sums, batch.rows, root(t, t.length), scalars_, scores);
    partial.score += kernels_.total(scores, batch.rows);
    for (int k = 0; k < kSums; ++k) partial.sums[k] += kernels_.total(sums.of[k], batch.rows);
    if (kept == nullptr) return;
    for_kept_sums(batch, kept, [&](int k, double* of_rows) { std::copy_n(sums.of[k], batch.rows, of_rows); });
  });
  return partial;
}

double TwoPass::score_one(const double* sums, double root_n) const {
  RowSums one;
  for (int k = 0; k < kSums; ++k) one.of[k][0] = sums[k];
  double score;
  variant_.score(one, 1, root_n, scalars_, &score);
  return score;
}

Totals TwoPass::add_up(int64_t index, const Partial* partials) const {
  const Tensor& t = tensor(index);
  Totals totals = {};
  totals.root_n = root(t, t.count());
  const int64_t pieces = pieces_of_row(t);
  for (int64_t unit = 0; unit < units_of(index); unit += pieces) {
    Partial row = {};
    for (int64_t piece = 0; piece < pieces; ++piece) {
      for (int k = 0; k < kSums; ++k) row.sums[k] += partials[unit + piece].sums[k];
    }
    for (int k = 0; k < kSums; ++k) totals.sums[k] += row.sums[k];
    totals.row_scores += pieces > 1 ? score_one(row.sums, root(t, t.length)) : partials[unit].score;
  }
  totals.total_score = score_one(totals.sums, totals.root_n);
  return totals;
}

void TwoPass::finish_unit(Stage& stage, const Part& unit, const Totals& totals, const Partial* partials, double* kept,
                          float* updates) const {
  const Tensor& t = tensor(unit.tensor);
  for_batches(unit, [&](const Part& batch) {
    RowSums sums;
    double keep[kTileRows], rate[kTileRows];
    if (t.rows == 1) {
      for (int k = 0; k < kSums; ++k) sums.of[k][0] = totals.sums[k];
    } else if (is_long(t)) {
      clear(sums, 1);
      const Partial* piece = partials + unit.row * pieces_of_row(t);
      for (const Partial* end = piece + pieces_of_row(t); piece != end; ++piece) {
        for (int k = 0; k < kSums; ++k) sums.of[k][0] += piece->sums[k];
      }
    } else if (kept != nullptr) {
      clear(sums, batch.rows);
      for_kept_sums(batch, kept, [&](int k, const double* of_rows) { std::copy_n(of_rows, batch.rows, sums.of[k]); });
    } else {
      sum_again(stage, batch, sums);
    }
    variant_.finish(sums, batch.rows, root(t, t.length), totals, scalars_, keep, rate);
    apply(stage, batch, keep, rate, updates);
  });
}

}  // namespace ingot
