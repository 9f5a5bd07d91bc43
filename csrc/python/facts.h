// What a remembered plan relies on, read from the tensors in every step.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace ingot {

// facts(written, read): lists of tensors the step writes, and tensors it only reads, on any device -> (bytes that differ if
// anything about types, devices, shapes or strides does, whether a written tensor overlaps another); None if one of them is no
// plain tensor, or complex, or a lazily negated view.
PyObject* facts(PyObject* self, PyObject* arguments);

}  // namespace ingot
