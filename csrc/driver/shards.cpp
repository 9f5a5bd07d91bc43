// The two passes one at a time, for sharded tensors: the sums of all processes are added in between.
#include <algorithm>

#include "step.h"

namespace ingot {

// Visits every unit of every tensor with its number and that of the tensor's first row in the whole table.
template <class Visit>
void TwoPass::for_all_units(Visit visit) const {
  struct Entry {
    int64_t tensor, first_unit, first_row;
  };
  std::vector<Entry> entries;
  int64_t units = 0, rows = 0, elements = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(table_.tensors.size()); ++i) {
    if (units_of(i) > 0) entries.push_back({i, units, rows});
    units += units_of(i);
    rows += tensor(i).rows;
    elements += tensor(i).count();
  }
  share(units, elements, [&](int64_t number) {
    const auto after = std::upper_bound(entries.begin(), entries.end(), number,
                                        [](int64_t unit, const Entry& entry) { return unit < entry.first_unit; });
    const Entry& entry = *(after - 1);
    Stage stage(table_, kernels_);
    visit(stage, number, unit_of(entry.tensor, number - entry.first_unit), entry.first_row);
  });
}

void TwoPass::first(double* out, int64_t total_rows) const {
  struct Piece {
    int64_t row;
    double sums[kSums];
  };
  int64_t units = 0;
  bool split = false;
  for (int64_t i = 0; i < static_cast<int64_t>(table_.tensors.size()); ++i) {
    split = split || (units_of(i) > 0 && unit_of(i, 0).columns < tensor(i).length);
    units += units_of(i);
  }
  std::vector<Piece> pieces(split ? units : 0, Piece{-1, {}});  // by unit: of rows that are split over several
  const auto write = [&](const double* sums, int64_t stride, int64_t row) {
    for (int k = 0, line = 0; k < kSums; ++k) {
      if (variant_.sums >> k & 1u) out[line++ * total_rows + row] += sums[k * stride];
    }
  };
  for_all_units([&](Stage& stage, int64_t number, const Part& unit, int64_t first_row) {
    if (unit.columns < tensor(unit.tensor).length) {
      const Partial partial = sum_unit(stage, unit, nullptr, nullptr);
      pieces[number].row = first_row + unit.row;
      std::copy_n(partial.sums, kSums, pieces[number].sums);
      return;
    }
    for_batches(unit, [&](const Part& batch) {
      RowSums sums;
      advance_and_sum(stage, batch, sums, nullptr);
      for (int64_t row = 0; row < batch.rows; ++row) write(&sums.of[0][row], kTileRows, first_row + batch.row + row);
    });
  });
  for (const Piece& piece : pieces) {
    if (piece.row >= 0) write(piece.sums, 1, piece.row);
  }
}

void TwoPass::second(const double* keep, const double* rate) const {
  for_all_units([&](Stage& stage, int64_t, const Part& unit, int64_t first_row) {
    for_batches(unit, [&](const Part& batch) {
      apply(stage, batch, keep + first_row + batch.row, rate + first_row + batch.row, nullptr);
    });
  });
}

}  // namespace ingot
