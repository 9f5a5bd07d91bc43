// Norms and scaling of lists of tensors.
#include "measures.h"

#include "interpreter.h"
#include "driver/measure.h"
#include "tensors.h"

namespace ingot {

// squares(tensors) -> float
PyObject* squares(PyObject*, PyObject* tensors) {
  Table table;
  double result = 0;
  if (!fill_single(table, tensors, kGrad)) return nullptr;
  without_lock([&] { result = sum_of_squares(table, *kernels); });
  return PyFloat_FromDouble(result);
}

// largest(tensors) -> float
PyObject* largest(PyObject*, PyObject* tensors) {
  Table table;
  double result = 0;
  if (!fill_single(table, tensors, kGrad)) return nullptr;
  without_lock([&] { result = largest_magnitude(table, *kernels); });
  return PyFloat_FromDouble(result);
}

// scale(tensors, factor), in place
PyObject* scale_in_place(PyObject*, PyObject* arguments) {
  PyObject* tensors;
  double factor;
  if (!PyArg_ParseTuple(arguments, "Od", &tensors, &factor)) return nullptr;
  Table table;
  if (!fill_single(table, tensors, kParam)) return nullptr;
  without_lock([&] { scale(table, *kernels, factor); });
  Py_RETURN_NONE;
}

}  // namespace ingot
