// Norms and scaling of lists of tensors, and the memory floor of the benchmark.
#pragma once

#include <cstdint>
#include <vector>

#include "loops/kernels.h"
#include "table.h"

namespace ingot {

// Of the kGrad operands of a table.
double sum_of_squares(const Table& table, const Kernels& kernels);
double largest_magnitude(const Table& table, const Kernels& kernels);

// The kParam operands of a table, in place.
void scale(const Table& table, const Kernels& kernels, double factor);

// The memory traffic of a step and nothing else: the tensors of one parameter, as 32-bit words.
struct FloorEntry {
  Streams streams;
  int64_t words;
};
void touch(const std::vector<FloorEntry>& entries, int reads, int writes, uint32_t mask, const Kernels& kernels);

}  // namespace ingot
