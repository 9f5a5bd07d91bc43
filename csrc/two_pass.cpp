// Two-pass optimizers. Large tensors: both passes over units, in parallel. Small ones: one thread does both, in cache.
#include <algorithm>
#include <cmath>
#include <limits>

#include "step.h"

namespace ingot {
namespace {

constexpr int64_t kUnit = 1 << 16;    // elements; four float32 operands of a unit fit a cache of 1 MB

// What is kept between the passes is bounded, whatever the model's size: tensors are handled in waves.
constexpr int64_t kWaveUnits = 1024;     // partial sums: 50 KB
constexpr int64_t kWaveElements = 1 << 21;  // 32 MB of float32 operands, which a large cache still holds in the second pass
constexpr int64_t kKeptWave = 1 << 16;   // sums of rows: 512 KB
constexpr int64_t kKeptSmall = 1 << 13;  // sums of rows of one small tensor: 64 KB per thread

// Updates of a small tensor are kept as well: 128 KB per thread, which stay in the second-level cache. Computing them again
// takes longer. LAMB on LoRA shapes: 6.7 ms against 8.3.
constexpr int64_t kKeptUpdates = 1 << 15;

constexpr unsigned kGradSums = 1u << 1 | 1u << 3;  // gg and pg

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Units are whole rows, unless rows are longer than a unit.
bool is_long(const Tensor& tensor) { return tensor.length > kUnit; }
int64_t pieces_of_row(const Tensor& tensor) { return is_long(tensor) ? divide_up(tensor.length, kUnit) : 1; }

// Tensors with fewer than two dimensions have no rows to project: infinite, as ingot.spec.Sums says.
double root(const Tensor& tensor, int64_t count) {
  return tensor.apart ? std::sqrt(static_cast<double>(count)) : std::numeric_limits<double>::infinity();
}

void clear(RowSums& sums, int64_t rows) {
  for (double(&of)[kTileRows] : sums.of) std::fill_n(of, rows, 0.0);
}

}  // namespace

int64_t TwoPass::units_of(int64_t index) const {
  const Tensor& t = tensor(index);
  if (t.count() == 0) return 0;
  return is_long(t) ? t.rows * pieces_of_row(t) : divide_up(t.rows, kUnit / t.length);
}

TwoPass::Part TwoPass::unit_of(int64_t index, int64_t number) const {
  const Tensor& t = tensor(index);
  if (is_long(t)) {
    const int64_t column = number % pieces_of_row(t) * kUnit;
    return {index, number / pieces_of_row(t), 1, column, std::min(kUnit, t.length - column)};
  }
  const int64_t rows = kUnit / t.length, row = number * rows;
  return {index, row, std::min(rows, t.rows - row), 0, t.length};
}

Span TwoPass::span_of(const Part& group) const {
  const int64_t length = tensor(group.tensor).length;
  return {group.tensor, group.row * length + group.column, group.rows * group.columns};
}

// The stretches of a group that a stage can hold: all of it, or tiles of a row that is longer than one.
template <class Visit>
void TwoPass::for_tiles(const Part& group, Visit visit) const {
  const auto [index, begin, count] = span_of(group);
  if (tensor(index).direct || count <= kTile) {
    visit(span_of(group), group.rows, group.columns);
    return;
  }
  for (int64_t i = 0; i < count; i += kTile) {
    const int64_t length = std::min(kTile, count - i);
    visit(Span{index, begin + i, length}, int64_t{1}, length);
  }
}

// A group of a tensor whose updates are kept: its operands where they lie, and the place of its updates.
Block TwoPass::kept_block(const Part& group, float* updates) const {
  const int64_t begin = span_of(group).begin;
  Block block = stored_block(tensor(group.tensor), begin);
  block.update = updates + begin;
  return block;
}

void TwoPass::advance_and_sum(Stage& stage, const Part& group, RowSums& sums, float* updates) const {
  const Math& m = math(group.tensor);
  clear(sums, group.rows);
  if (updates != nullptr) {
    m.advance_sum_keep(kept_block(group, updates), group.rows, group.columns, scalars_, sums);
    return;
  }
  if (is_plain_bfloat16(table_, tensor(group.tensor))) {
    const Block stored = stored_block(tensor(group.tensor), span_of(group).begin);
    variant_.bfloat16.advance_and_sum(stored, group.rows, group.columns, scalars_, sums);
    return;
  }
  for_tiles(group, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, kParamBit | kGradBit | kStateBits);
    if (table_.rounded_states) {
      m.advance(stage.block(), span.count, scalars_);
      stage.store_and_reload_states(span);
      m.sum(stage.block(), rows, length, scalars_, sums);
    } else {
      m.advance_and_sum(stage.block(), rows, length, scalars_, sums);
      stage.store(span, kStateBits);
    }
  });
}

// The sums of the rows of a tensor that has too many to keep, such as an embedding of 100000 words.
void TwoPass::sum_again(Stage& stage, const Part& group, RowSums& sums) const {
  clear(sums, group.rows);
  if (variant_.row_sums == 0) return;
  const bool grad = variant_.direction_reads_grad || (variant_.row_sums & kGradSums);
  const unsigned operands = kParamBit | kStateBits | (grad ? kGradBit : 0u);
  for_tiles(group, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, operands);
    math(group.tensor).sum_for_finish(stage.block(), rows, length, scalars_, sums);
  });
}

void TwoPass::apply(Stage& stage, const Part& group, const double* keep, const double* rate, float* updates) const {
  if (updates != nullptr) {
    kernels_.apply_kept(kept_block(group, updates), group.rows, group.columns, scalars_, keep, rate);
    return;
  }
  const unsigned operands = kParamBit | kStateBits | (variant_.direction_reads_grad ? kGradBit : 0u);
  if (is_plain_bfloat16(table_, tensor(group.tensor))) {
    const Block stored = stored_block(tensor(group.tensor), span_of(group).begin);
    variant_.bfloat16.apply(stored, group.rows, group.columns, scalars_, keep, rate);
    return;
  }
  for_tiles(group, [&](const Span& span, int64_t rows, int64_t length) {
    stage.load(span, operands);
    math(group.tensor).apply(stage.block(), rows, length, scalars_, keep, rate);
    stage.store(span, kParamBit);
  });
}

// How many sums of rows the second pass needs; those of long rows follow from the partial sums.
int64_t TwoPass::kept_size(int64_t index) const {
  const Tensor& t = tensor(index);
  if (t.rows <= 1 || is_long(t)) return 0;
  int64_t lines = 0;
  for (int k = 0; k < kSums; ++k) lines += variant_.row_sums >> k & 1u;
  return lines * t.rows;
}

void TwoPass::exchange_kept(const Part& group, RowSums& sums, double* kept, bool store) const {
  double* line = kept + group.row;
  for (int k = 0; k < kSums; ++k) {
    if (!(variant_.row_sums >> k & 1u)) continue;
    if (store) std::copy_n(sums.of[k], group.rows, line);
    else std::copy_n(line, group.rows, sums.of[k]);
    line += tensor(group.tensor).rows;
  }
}

TwoPass::Partial TwoPass::sum_unit(Stage& stage, const Part& unit, double* kept, float* updates) const {
  const Tensor& t = tensor(unit.tensor);
  Partial partial = {};
  for_groups(unit, [&](const Part& group) {
    RowSums sums;
    double scores[kTileRows];
    advance_and_sum(stage, group, sums, updates);
    variant_.score(sums, group.rows, root(t, t.length), scalars_, scores);
    partial.score += kernels_.total(scores, group.rows);
    for (int k = 0; k < kSums; ++k) partial.sums[k] += kernels_.total(sums.of[k], group.rows);
    if (kept != nullptr) exchange_kept(group, sums, kept, true);
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
    totals.far_rows += pieces > 1 ? score_one(row.sums, root(t, t.length)) : partials[unit].score;
  }
  totals.far_total = score_one(totals.sums, totals.root_n);
  return totals;
}

void TwoPass::finish_unit(Stage& stage, const Part& unit, const Totals& totals, const Partial* partials,
                          double* kept, float* updates) const {
  const Tensor& t = tensor(unit.tensor);
  for_groups(unit, [&](const Part& group) {
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
      clear(sums, group.rows);
      exchange_kept(group, sums, kept, false);
    } else {
      sum_again(stage, group, sums);
    }
    variant_.finish(sums, group.rows, root(t, t.length), totals, scalars_, keep, rate);
    apply(stage, group, keep, rate, updates);
  });
}

void TwoPass::run_small(Stage& stage, int64_t index) const {
  // Kept by the thread: freed and taken again for every tensor, they would be new pages each time.
  thread_local std::vector<double> row_memory;
  thread_local std::vector<float> update_memory;
  const Tensor& t = tensor(index);
  if (t.count() == 0) return;
  double* kept = nullptr;
  float* updates = nullptr;
  const int64_t size = kept_size(index);
  if (size > 0 && size <= kKeptSmall) {
    row_memory.resize(kKeptSmall);
    kept = row_memory.data();
  }
  if (t.direct && !t.wide && !table_.rounded_states && t.count() <= kKeptUpdates) {
    update_memory.resize(kKeptUpdates);
    updates = update_memory.data();
  }
  const Part whole = unit_of(index, 0);
  const Partial partial = sum_unit(stage, whole, kept, updates);
  finish_unit(stage, whole, add_up(index, &partial), &partial, kept, updates);
}

void TwoPass::run() const {
  Wave wave;
  int64_t grouped = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(table_.tensors.size()); ++i) {
    const int64_t units = units_of(i);
    if (units <= 1) {
      add_small(wave.small, i, tensor(i).count(), grouped);
      wave.elements += tensor(i).count();
      continue;
    }
    const int64_t size = kept_size(i) <= kKeptWave ? kept_size(i) : 0;
    if (wave.units > 0 && (wave.units + units > kWaveUnits || wave.kept + size > kKeptWave ||
                           wave.elements + tensor(i).count() > kWaveElements)) {
      run_wave(wave);
      wave = {};
    }
    wave.large.push_back({i, wave.units, size > 0 ? wave.kept : -1, {}});
    wave.units += units;
    wave.kept += size;
    wave.elements += tensor(i).count();
  }
  run_wave(wave);
}

void TwoPass::run_wave(Wave& wave) const {
  std::vector<Partial> partials(wave.units);
  std::vector<double> memory(wave.kept);
  const auto find = [&](int64_t unit) -> Large& {
    const auto after = std::upper_bound(wave.large.begin(), wave.large.end(), unit,
                                        [](int64_t number, const Large& large) { return number < large.first_unit; });
    return *(after - 1);
  };
  const auto kept = [&](const Large& large) { return large.kept < 0 ? nullptr : &memory[large.kept]; };
  // Large units first: the small tensors at the end even out the threads.
  const int64_t small = static_cast<int64_t>(wave.small.size());
  share(wave.units + small, wave.elements, [&](int64_t number) {
    Stage stage(table_, kernels_);
    if (number < wave.units) {
      const Large& large = find(number);
      partials[number] = sum_unit(stage, unit_of(large.tensor, number - large.first_unit), kept(large), nullptr);
      return;
    }
    const Task& task = wave.small[number - wave.units];
    for (int64_t i = task.tensor; i < task.last; ++i) run_small(stage, i);
  });
  for (Large& large : wave.large) large.totals = add_up(large.tensor, &partials[large.first_unit]);
  share(wave.units, wave.elements, [&](int64_t number) {
    Stage stage(table_, kernels_);
    const Large& large = find(number);
    const Part unit = unit_of(large.tensor, number - large.first_unit);
    finish_unit(stage, unit, large.totals, &partials[large.first_unit], kept(large), nullptr);
  });
}

}  // namespace ingot
