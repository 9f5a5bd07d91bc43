// The memory floor of the benchmark: the memory traffic of a step without its math.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace ingot {

// floor(reads, writes, mask): lists of lists of dense tensors. Every word of `reads` is read, every word of `writes` is read and
// written back, with the threads of a step. With mask 0 nothing changes; with another, those bits of a written word flip that are
// set in the mask and in the complement of the XOR of the words read beside it, which shows a test that all were read.
PyObject* floor(PyObject* self, PyObject* arguments);

}  // namespace ingot
