// What a remembered plan relies on, read from the tensors in every step.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace ingot {

// facts(written, read): lists of tensors the step writes, and tensors it only reads, on any device -> (bytes that differ if
// anything about types, devices, shapes or strides does, whether a written tensor overlaps another); None if one of them is no
// plain tensor, or complex, or a lazily negated view.
PyObject* facts(PyObject* self, PyObject* arguments);

// addresses(lists): lists of equally many tensors, one list per operand, on any device -> (the int64 addresses of all tensors, list
// after list; the int64 number of elements of each tensor of the first list; whether all are in row-major order). None if a
// tensor is no plain one, or has gaps, or if the operands of one tensor lie in memory in different orders.
PyObject* addresses(PyObject* self, PyObject* lists);

}  // namespace ingot
