// Functions of the module about lists of tensors: norms and scaling.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace ingot {

PyObject* squares(PyObject* self, PyObject* tensors);
PyObject* largest(PyObject* self, PyObject* tensors);
PyObject* scale_in_place(PyObject* self, PyObject* arguments);

}  // namespace ingot
