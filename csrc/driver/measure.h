// Norms and scaling of lists of tensors.
#pragma once

#include <cstdint>

#include "loops/kernels.h"
#include "schedule.h"

namespace ingot {

// Of the kGrad operands of a table.
double sum_of_squares(const Table& table, const Kernels& kernels);
void sums_of_squares(const Job* begin, const Job* end, const Kernels& kernels, double* sums);  // one per job
double largest_magnitude(const Table& table, const Kernels& kernels);

// The kParam operands of a table, in place.
void scale(const Table& table, const Kernels& kernels, double factor);

}  // namespace ingot
