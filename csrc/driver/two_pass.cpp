// Two-pass optimizers. Large tensors: both passes over units, in parallel. Small ones: one thread does both, in cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "step.h"

namespace ingot {
namespace {

constexpr int64_t kUnit = 1 << 16;  // elements; four float32 operands of a unit fit a cache of 1 MB

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

void clear(RowSums& sums, int64_t rows) {
  for (double(&of)[kTileRows] : sums.of) std::fill_n(of, rows, 0.0);
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

// Calls `visit` for the whole batch if the kernels run in place or it fits a stage; otherwise the batch is one long row, which is
// visited tile by tile.
template <class Visit>
void TwoPass::for_tiles(const Part& batch, Visit visit) const {
  const auto [index, begin, count] = span_of(batch);
  if (tensor(index).direct || count <= kTile) {
    visit(span_of(batch), batch.rows, batch.columns);
    return;
  }
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t length = std::min(kTile, count - i);
    visit(Span{index, begin + i, length}, int64_t{1}, length);
  }
}

// The operands of a batch in their own memory, and the place of its updates if they are kept.
Block TwoPass::in_place(const Part& batch, float* updates) const {
  const int64_t begin = span_of(batch).begin;
  Block block = stored_block(tensor(batch.tensor), begin);
  if (updates != nullptr) block.update = updates + begin;
  return block;
}

// The loops that take the operands as they are stored; null if they have to be staged, or are direct.
const TwoPassMix* TwoPass::mixed_math(int64_t index) const {
  const Tensor& t = tensor(index);
  if (t.mix < 0 || t.length % kLanes != 0 || kernels_.two_pass_mixes == nullptr) return nullptr;
  const TwoPassMix* mixed = &kernels_.two_pass_mixes[table_.variant].math[t.mix];
  return mixed->apply != nullptr ? mixed : nullptr;
}

void TwoPass::advance_and_sum(Stage& stage, const Part& batch, RowSums& sums, float* updates) const {
  const Math& m = math(batch.tensor);
  clear(sums, batch.rows);
  if (updates != nullptr) {
    m.advance_sum_keep(in_place(batch, updates), batch.rows, batch.columns, scalars_, sums);
    return;
  }
  if (const TwoPassMix* mixed = mixed_math(batch.tensor)) {
    mixed->advance_and_sum(in_place(batch, nullptr), batch.rows, batch.columns, scalars_, sums);
    return;
  }
  for_tiles(batch, [&](const Span& span, int64_t rows, int64_t length) {
    if (tensor(batch.tensor).coded) advance_blocks(stage, span);
    stage.load(span, kParamBit | kGradBit | kStateBits);
    if (tensor(batch.tensor).coded) {
      m.sum(stage.block(), rows, length, scalars_, sums);
    } else if (table_.rounded_states) {
      m.advance(stage.block(), span.count, scalars_);
      stage.store_and_reload_states(span);
      m.sum(stage.block(), rows, length, scalars_, sums);
    } else {
      m.advance_and_sum(stage.block(), rows, length, scalars_, sums);
      stage.store(span, kStateBits);
    }
  });
}

// New states for the blocks that end in the span, or with the tensor; a unit begins with a block and goes through its spans in
// order, so this reaches all its blocks, each once and before anything reads it.
void TwoPass::advance_blocks(Stage& stage, const Span& span) const {
  const auto up = [](int64_t i) { return divide_up(i, kBlock) * kBlock; };
  const int64_t end = std::min(up(span.begin + span.count), tensor(span.tensor).count());
  for (int64_t i = up(span.begin); i < end; i += kTile) {
    const Span blocks = {span.tensor, i, std::min(kTile, end - i)};
    stage.load(blocks, kParamBit | kGradBit | kStateBits);
    math(span.tensor).advance(stage.block(), blocks.count, scalars_);
    stage.store(blocks, kStateBits);
  }
}

// The sums of the rows of a tensor that has too many to keep, such as an embedding of 100000 words.
void TwoPass::sum_again(Stage& stage, const Part& batch, RowSums& sums) const {
  clear(sums, batch.rows);
  if (variant_.row_sums == 0) return;
  const bool grad = variant_.direction_reads_grad || variant_.row_sums_read_grad;
  const unsigned operands = kParamBit | kStateBits | (grad ? kGradBit : 0u);
  for_tiles(batch, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, operands);
    math(batch.tensor).sum_for_finish(stage.block(), rows, length, scalars_, sums);
  });
}

void TwoPass::apply(Stage& stage, const Part& batch, const double* keep, const double* rate, float* updates) const {
  if (updates != nullptr) {
    kernels_.apply_kept(in_place(batch, updates), batch.rows, batch.columns, scalars_, keep, rate);
    return;
  }
  if (const TwoPassMix* mixed = mixed_math(batch.tensor)) {
    mixed->apply(in_place(batch, nullptr), batch.rows, batch.columns, scalars_, keep, rate);
    return;
  }
  const unsigned operands = kParamBit | kStateBits | (variant_.direction_reads_grad ? kGradBit : 0u);
  for_tiles(batch, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, operands);
    math(batch.tensor).apply(stage.block(), rows, length, scalars_, keep, rate);
    stage.store(span, kParamBit);
  });
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
