// Both passes over one batch of rows: which loops run on it, and what has to be staged.
#include <algorithm>

#include "step.h"

namespace ingot {

// Calls `visit` for the whole batch if the kernels run in place or it fits a stage; otherwise the batch is one long row, which is
// visited tile by tile.
template <class Visit>
void TwoPass::for_tiles(const Part& batch, Visit visit) const {
  const auto [index, begin, count] = span_of(batch);
  if (count == 0) return;  // for_mixed or for_blocks took the whole batch
  if (tensor(index).direct || count <= kTile) {
    visit(span_of(batch), batch.rows, batch.columns);
    return;
  }
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t length = std::min(kTile, count - i);
    visit(Span{index, begin + i, length}, int64_t{1}, length);
  }
}

// How many columns of a batch loops over whole multiples of `unit` take: all, or the whole tiles of one row, because the sums of a
// tile are added up together.
int64_t TwoPass::whole_columns(const Part& batch, int64_t unit) const {
  if (batch.columns % unit == 0) return batch.columns;
  return batch.rows == 1 ? batch.columns / kTile * kTile : 0;
}

// Calls `visit` for what a batch begins with that loops over operands of several types take in their own memory; returns the rest.
// Operands of the type of the math are not for these loops: the ordinary ones take them in place.
template <class Visit>
TwoPass::Part TwoPass::for_mixed(const Part& batch, Visit visit) const {
  const int64_t mix = tensor(batch.tensor).mix;
  if (mix < 0 || kernels_.two_pass_mixes == nullptr) return batch;
  const TwoPassMix& loops = kernels_.two_pass_mixes[table_.variant].math[mix];
  const int64_t whole = loops.apply != nullptr ? whole_columns(batch, kLanes) : 0;
  if (whole > 0) visit(loops, in_place(batch, nullptr), whole);
  return rest_of(batch, whole);
}

// The same for the whole blocks of codes, if they are rounded to nearest; other operands may pass through the stage.
template <class Visit>
TwoPass::Part TwoPass::for_blocks(const Part& batch, Visit visit) const {
  const auto [index, begin, count] = span_of(batch);
  const Tensor& t = tensor(index);
  const SweepMixes* mixes = kernels_.mixes_of(table_.variant);
  if (!t.coded || mixes == nullptr || table_.is_stochastic() || begin % kBlock != 0) return batch;
  const int64_t whole = whole_columns(batch, kBlock);
  const int64_t most = table_.only_codes(t) ? whole : kTile;
  for (int64_t i = 0; i < whole; i += most) {
    const int64_t length = std::min(most, whole - i);
    visit(mixes->blocks, Span{index, begin + i, batch.rows * length}, batch.rows, length);
  }
  return rest_of(batch, whole);
}

// The operands of a batch in their own memory, and the place of its updates if they are kept.
Slice TwoPass::in_place(const Part& batch, float* updates) const {
  const int64_t begin = span_of(batch).begin;
  Slice slice = stored_slice(tensor(batch.tensor), begin);
  if (updates != nullptr) slice.update = updates + begin;
  return slice;
}

void TwoPass::advance_and_sum(Stage& stage, const Part& batch, RowSums& sums, float* updates) const {
  const Math& m = math(batch.tensor);
  clear(sums, batch.rows);
  if (updates != nullptr) {
    m.advance_and_sum(in_place(batch, updates), batch.rows, batch.columns, scalars_, sums);
    return;
  }
  Part rest = for_mixed(batch, [&](const TwoPassMix& loops, const Slice& slice, int64_t length) {
    loops.advance_and_sum(slice, batch.rows, length, scalars_, sums);
  });
  rest = for_blocks(rest, [&](const TwoPassMix& loops, const Span& span, int64_t rows, int64_t length) {
    loops.advance_and_sum(stage.load_beside_codes(span, kParamBit | kGradBit), rows, length, scalars_, sums);
  });
  for_tiles(rest, [&](const Span& span, int64_t rows, int64_t length) {
    if (tensor(batch.tensor).coded) advance_blocks(stage, span);
    stage.load(span, kParamBit | kGradBit | kStateBits);
    if (tensor(batch.tensor).coded) {
      m.sum(stage.slice(), rows, length, scalars_, sums);
    } else if (table_.rounded_states) {
      m.advance(stage.slice(), span.count, scalars_);
      stage.store_and_reload_states(span);
      m.sum(stage.slice(), rows, length, scalars_, sums);
    } else {
      m.advance_and_sum(stage.slice(), rows, length, scalars_, sums);
      stage.store(span, kStateBits);
    }
  });
}

// Advances the states of the blocks that begin in the span. A unit begins with a block and goes through its spans in order, so each
// of its blocks is advanced once, before its new states are read.
void TwoPass::advance_blocks(Stage& stage, const Span& span) const {
  const auto up = [](int64_t i) { return divide_up(i, kBlock) * kBlock; };
  const int64_t end = std::min(up(span.begin + span.count), tensor(span.tensor).count());
  for (int64_t i = up(span.begin); i < end; i += kTile) {
    const Span blocks = {span.tensor, i, std::min(kTile, end - i)};
    stage.load(blocks, kParamBit | kGradBit | kStateBits);
    math(span.tensor).advance(stage.slice(), blocks.count, scalars_);
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
    math(batch.tensor).sum_for_finish(stage.slice(), rows, length, scalars_, sums);
  });
}

void TwoPass::apply(Stage& stage, const Part& batch, const double* keep, const double* rate, float* updates) const {
  if (updates != nullptr) {
    kernels_.apply_kept(in_place(batch, updates), batch.rows, batch.columns, scalars_, keep, rate);
    return;
  }
  Part rest = for_mixed(batch, [&](const TwoPassMix& loops, const Slice& slice, int64_t length) {
    loops.apply(slice, batch.rows, length, scalars_, keep, rate);
  });
  const unsigned operands = kParamBit | kStateBits | (variant_.direction_reads_grad ? kGradBit : 0u);
  rest = for_blocks(rest, [&](const TwoPassMix& loops, const Span& span, int64_t rows, int64_t length) {
    loops.apply(stage.load_beside_codes(span, operands), rows, length, scalars_, keep, rate);
    stage.store(span, kParamBit);
  });
  for_tiles(rest, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, operands);
    math(batch.tensor).apply(stage.slice(), rows, length, scalars_, keep, rate);
    stage.store(span, kParamBit);
  });
}

}  // namespace ingot
