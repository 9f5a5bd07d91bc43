// Both passes over one batch of rows: which loops run on it, and what has to be staged.
#include <algorithm>

#include "step.h"

namespace ingot {

// Calls `visit` for the whole batch if the kernels run in place or it fits a stage; otherwise the batch is one long row, which is
// visited tile by tile.
template <class Visit>
void TwoPass::for_tiles(const Part& batch, Visit visit) const {
  const auto [index, begin, count] = span_of(batch);
  if (count == 0) return;  // for_blocks took the whole batch
  if (tensor(index).direct || count <= kTile) {
    visit(span_of(batch), batch.rows, batch.columns);
    return;
  }
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t length = std::min(kTile, count - i);
    visit(Span{index, begin + i, length}, int64_t{1}, length);
  }
}

// Calls `visit` for the whole blocks of codes that a batch begins with, if they are rounded to nearest and there are loops for
// them; returns the rest. Parts of a row are whole tiles: the sums of a tile are added up together.
template <class Visit>
TwoPass::Part TwoPass::for_blocks(const Part& batch, Visit visit) const {
  const auto [index, begin, count] = span_of(batch);
  const Tensor& t = tensor(index);
  const SweepMixes* mixes = kernels_.mixes_of(table_.variant);
  if (!t.coded || mixes == nullptr || !table_.keys[0].empty() || begin % kBlock != 0) return batch;
  int64_t whole = batch.columns;
  if (whole % kBlock != 0) whole = batch.rows == 1 ? whole / kTile * kTile : 0;
  const int64_t most = table_.only_codes(t) ? whole : kTile;
  for (int64_t i = 0; i < whole; i += most) {
    const int64_t length = std::min(most, whole - i);
    visit(mixes->blocks, Span{index, begin + i, batch.rows * length}, batch.rows, length);
  }
  return {index, batch.row, batch.rows, batch.column + whole, batch.columns - whole};
}

// The operands of a batch in their own memory, and the place of its updates if they are kept.
Block TwoPass::in_place(const Part& batch, float* updates) const {
  const int64_t begin = span_of(batch).begin;
  Block block = stored_block(tensor(batch.tensor), begin);
  if (updates != nullptr) block.update = updates + begin;
  return block;
}

// The loops for operands of several types in their own memory. Null where there are none: such operands are copied through a
// stage. Null as well where all operands are of the type of the math: the ordinary loops take these in place.
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
    m.advance_and_sum(in_place(batch, updates), batch.rows, batch.columns, scalars_, sums);
    return;
  }
  if (const TwoPassMix* mixed = mixed_math(batch.tensor)) {
    mixed->advance_and_sum(in_place(batch, nullptr), batch.rows, batch.columns, scalars_, sums);
    return;
  }
  const Part rest = for_blocks(batch, [&](const TwoPassMix& loops, const Span& span, int64_t rows, int64_t length) {
    loops.advance_and_sum(stage.load_beside_codes(span, kParamBit | kGradBit), rows, length, scalars_, sums);
  });
  for_tiles(rest, [&](const Span& span, int64_t rows, int64_t length) {
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
  const Part rest = for_blocks(batch, [&](const TwoPassMix& loops, const Span& span, int64_t rows, int64_t length) {
    loops.apply(stage.load_beside_codes(span, operands), rows, length, scalars_, keep, rate);
    stage.store(span, kParamBit);
  });
  for_tiles(rest, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, operands);
    math(batch.tensor).apply(stage.block(), rows, length, scalars_, keep, rate);
    stage.store(span, kParamBit);
  });
}

}  // namespace ingot
