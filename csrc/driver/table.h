// The pointer table of one step: every operand of every tensor, as read from torch at the start of the step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dlpack.h"
#include "loops/kernels.h"
#include "layout.h"

namespace ingot {

// What the math works on. `kStored` is the 16-bit parameter if there is a float32 master copy; the master is then kParam.
// `kScale` are the scales of states in blocks: they have no type or layout of their own.
enum Operand { kParam, kGrad, kState, kStored = kState + kMaxStates, kScale, kOperands = kScale + kMaxStates };

struct Tensor {
  void* data[kOperands];
  DType dtype[kOperands];
  bool wide;      // the math runs in double
  bool has_rows;  // two or more dimensions (a complex number counts as one element): dimension 0 numbers rows
  bool direct;    // all operands are consecutive and of the type of the math: kernels run on them in place
  bool coded;     // the states are codes in blocks, gone through in row-major order
  int8_t mix;     // the row of INGOT_MIXES whose loops run on the operands in place, -1: none
  int32_t views;  // index into Table::views, -1: all operands are consecutive
  int64_t rows;   // 1 where the optimizer does not look at rows; rows * length is the number of elements
  int64_t length;

  int64_t count() const { return rows * length; }
};

// The views of the operands of one tensor, in a common order; only operands that are not consecutive need one.
struct Views {
  View operand[kOperands];
  View index;  // row-major indices, for stochastic rounding; empty if consecutive
};

// One task of a thread: a stretch of a large tensor (end > 0), or the small tensors [tensor, last).
struct Task {
  int64_t tensor;
  int64_t last;
  int64_t begin;
  int64_t end;
};

struct Workspace;  // what a two-pass optimizer needs between its passes, see step.h

struct Table {
  int variant = -1;
  int states = 0;
  bool masters = false;
  bool rounded_states = false;  // states in 16 bits: the direction sees them as stored
  bool coded = false;           // states are codes, each with a tensor of scales
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<Views>> views;
  std::vector<uint32_t> keys[1 + kMaxStates];  // stochastic rounding; empty: to nearest
  // All memory that a step needs, taken before it begins: see schedule().
  int64_t elements = 0;
  std::vector<Task> tasks;
  std::unique_ptr<double[]> partials;  // a number per task, for norms
  std::shared_ptr<Workspace> workspace;

  const View* view(const Tensor& tensor, int operand) const {
    if (tensor.views < 0) return nullptr;
    const View& view = views[tensor.views]->operand[operand];
    return is_consecutive(view) ? nullptr : &view;
  }

  bool is_stochastic() const { return !keys[0].empty(); }

  // Whether states are codes, and parameter and gradient float32 in one piece.
  bool only_codes(const Tensor& tensor) const {
    const bool floats = tensor.dtype[kParam] == DType::float32 && tensor.dtype[kGrad] == DType::float32;
    return tensor.coded && floats && tensor.views < 0 && !masters;
  }
};

// Adds tensors to a table one at a time; an empty string, or why a tensor cannot be taken.
class TableBuilder {
 public:
  TableBuilder(Table& table, bool one_type, bool rows = false, int inner_dims = 0, unsigned unsigned_states = 0)
      : table_(table), one_type_(one_type), rows_(rows), inner_dims_(inner_dims), unsigned_states_(unsigned_states) {}

  // `operands[k]` is null for operands that this table does not have. All but the gradient are written to.
  std::string add(const DLTensor* const* operands);

 private:
  std::string add_codes(Tensor& tensor, const DLTensor* const* operands) const;
  std::string lay_out(Tensor& tensor, const DLTensor* const* operands);
  int8_t mix_of(const Tensor& tensor) const;

  Table& table_;
  bool one_type_;  // refuse tensors whose types are not those of the first; a bucket has the same types throughout
  bool rows_;
  int inner_dims_;            // dimensions at the end that belong to one element: 1 for the real view of a complex tensor
  unsigned unsigned_states_;  // bit k: codes of state k are unsigned
};

int64_t element_count(const DLTensor& tensor);
bool is_row_major(const DLTensor& tensor);

// The addresses between which the elements of a tensor lie; equal if it has none.
std::pair<uintptr_t, uintptr_t> extent_of(const DLTensor& tensor);

// Why a tensor's values cannot be read here; null if they can.
const char* check_storage(const DLTensor& tensor, DType* dtype);

}  // namespace ingot
