// One step over all tensors of a table.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "loops/kernels.h"
#include "schedule.h"
#include "stage.h"
#include "table.h"

namespace ingot {

// After the last tensor: takes all memory that a step over the table will need.
void schedule(Table& table, const Kernels& kernels);

// A whole step of any optimizer, over one or more tables that do not overlap.
void run_jobs(const Job* begin, const Job* end, const Kernels& kernels);

// Elementwise optimizers: one sweep over every tensor.
void run_elementwise(const Job* begin, const Job* end, const Kernels& kernels);

// What the first pass of a two-pass optimizer knows about a unit: the part of a large tensor that one thread takes.
struct Partial {
  double sums[kSums];
  double score;
};

// A tensor of more than one unit: the number of its first unit in its wave, and where in Workspace::kept the sums of its rows
// begin (-1: they are not kept, and the second pass adds them up again).
struct Large {
  int64_t tensor;
  int64_t first_unit;
  int64_t kept;
  Totals totals;
};

// Tensors that go through both passes together. A step works in waves so that the memory needed between the passes is bounded.
struct Wave {
  std::vector<Task> small;
  std::vector<Large> large;
  int64_t units = 0;
  int64_t kept = 0;
  int64_t elements = 0;
};

// The waves of a step, and memory for the largest of them.
struct Workspace {
  std::vector<Wave> waves;
  std::vector<Partial> partials;
  std::vector<double> kept;
  TwiceTaken units{0};
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline void clear(RowSums& sums, int64_t rows) {
  for (double(&of)[kTileRows] : sums.of) std::fill_n(of, rows, 0.0);
}

// Two-pass optimizers: sums over every tensor, finish, then the update. Only a small tensor's updates are kept between the
// passes, in cache; those of others are computed again.
class TwoPass {
 public:
  TwoPass(const Table& table, const Kernels& kernels, const StepScalars& scalars)
      : table_(table), kernels_(kernels), variant_(kernels.variants[table.variant]), scalars_(scalars) {}

  void run() const;
  // Sorts the tensors into waves and takes memory for them.
  std::shared_ptr<Workspace> make_workspace() const;
  // The passes one at a time, for sharded tensors: sums of other processes come in between. `sums` has one line of
  // `total_rows` per sum, `keep` and `rate` have one number per row; all start at zero.
  void first(double* sums, int64_t total_rows) const;
  void second(const double* keep, const double* rate) const;

 private:
  // Some rows of a tensor, or part of one row.
  struct Part {
    int64_t tensor;
    int64_t row, rows;
    int64_t column, columns;
  };
  int64_t units_of(int64_t tensor) const;
  Part unit_of(int64_t tensor, int64_t number) const;

  // A batch is the rows of one kernel call: as many as fit a tile, at least one. Its size must not depend on the layout or type
  // of the tensor, because it decides in which order numbers are added.
  template <class Visit>
  void for_batches(const Part& unit, Visit visit) const {
    const int64_t most = std::clamp<int64_t>(kTile / unit.columns, 1, kTileRows);
    for (int64_t row = 0; row < unit.rows; row += most) {
      visit(Part{unit.tensor, unit.row + row, std::min(most, unit.rows - row), unit.column, unit.columns});
    }
  }
  Span span_of(const Part& batch) const;
  static Part rest_of(const Part& batch, int64_t columns) {
    return {batch.tensor, batch.row, batch.rows, batch.column + columns, batch.columns - columns};
  }
  template <class Visit>
  void for_tiles(const Part& batch, Visit visit) const;
  int64_t whole_columns(const Part& batch, int64_t unit) const;
  template <class Visit>
  Part for_mixed(const Part& batch, Visit visit) const;
  template <class Visit>
  Part for_blocks(const Part& batch, Visit visit) const;

  Slice in_place(const Part& batch, float* updates) const;
  void advance_and_sum(Stage& stage, const Part& batch, RowSums& sums, float* updates) const;
  void advance_blocks(Stage& stage, const Span& span) const;
  void sum_again(Stage& stage, const Part& batch, RowSums& sums) const;
  void apply(Stage& stage, const Part& batch, const double* keep, const double* rate, float* updates) const;

  // `kept` is memory for the sums of all rows of the tensor, `updates` for all its updates; either may be null.
  Partial sum_unit(Stage& stage, const Part& unit, double* kept, float* updates) const;
  Totals add_up(int64_t tensor, const Partial* partials) const;
  double score_one(const double* sums, double root_n) const;
  void finish_unit(Stage& stage, const Part& unit, const Totals& totals, const Partial* partials, double* kept,
                   float* updates) const;
  int64_t kept_size(int64_t tensor) const;
  template <class Visit>
  void for_kept_sums(const Part& batch, double* kept, Visit visit) const;

  void run_small(Stage& stage, int64_t tensor) const;
  void run_wave(Wave& wave, Workspace& workspace) const;
  template <class Visit>
  void for_all_units(Visit visit) const;

  const Tensor& tensor(int64_t index) const { return table_.tensors[index]; }
  const Math& math(int64_t index) const { return variant_.math(tensor(index).wide); }

  const Table& table_;
  const Kernels& kernels_;
  const Variant& variant_;
  const StepScalars& scalars_;
};

}  // namespace ingot
