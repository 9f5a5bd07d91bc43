// Brings a tile of a tensor into the type of the math and back: conversion, strided memory, master copies, rounding.
#pragma once

#include <cstdint>

#include "loops/kernels.h"
#include "table.h"

namespace ingot {

// Operands to bring in or out, as bits.
constexpr unsigned bit(int operand) { return 1u << operand; }
constexpr unsigned kParamBit = bit(kParam);
constexpr unsigned kGradBit = bit(kGrad);
constexpr unsigned kStateBits = bit(kState) | bit(kState + 1) | bit(kState + 2);

// Consecutive elements of one tensor, in the order of its rows.
struct Span {
  int64_t tensor;
  int64_t begin;
  int64_t count;  // at most kTile, unless nothing is staged
};

// The operands where they lie, whatever their type.
Slice stored_slice(const Tensor& tensor, int64_t begin);

// One per thread, on its stack. Operands that need no conversion are not copied: the slice points at them.
class Stage {
 public:
  Stage(const Table& table, const Kernels& kernels) : table_(table), kernels_(kernels) {}

  // Points the slice at the operands asked for.
  void load(const Span& span, unsigned operands);
  // Points a slice at the parameter and the gradient, staged if need be, and at the 8-bit codes of the states in their own memory.
  Slice load_beside_codes(const Span& span, unsigned operands);
  // Writes operands back that load() brought in, where they are not in place anyway; a parameter with a master copy is written as well.
  void store(const Span& span, unsigned operands);
  // Writes the states and reads them again: the direction is defined on states as they are stored.
  void store_and_reload_states(const Span& span);

  const Slice& slice() const { return slice_; }

 private:
  struct alignas(64) Slot {
    char bytes[kTile * 8 + 256];  // 256 more, so that slots do not all begin at the same offset in a page (4K aliasing)
  };

  void* bring_in(const Span& span, int operand);
  void bring_out(const Span& span, int operand, const void* values);
  const void* packed(const Span& span, int operand);
  void point(int operand, void* values);
  void* pointer(int operand) const;

  const Table& table_;
  const Kernels& kernels_;
  Slice slice_ = {};
  Slot values_[kStored];
  Slot packed_;
  int64_t indices_[kTile];
};

}  // namespace ingot
