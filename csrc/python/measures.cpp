// Norms and scaling of lists of tensors, and the memory floor of the benchmark.
#include "measures.h"

#include <algorithm>
#include <vector>

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

// floor(reads, writes, mask): lists of lists of dense tensors; every word of `writes` is read and written back, with those bits
// of the mask changed that are not set in the sum without carry of the words read: none, if the mask is 0
PyObject* floor(PyObject*, PyObject* arguments) {
  PyObject *reads, *writes;
  unsigned mask;
  if (!PyArg_ParseTuple(arguments, "O!O!I", &PyList_Type, &reads, &PyList_Type, &writes, &mask)) return nullptr;
  const Py_ssize_t read_count = PyList_Size(reads), write_count = PyList_Size(writes);
  if (torch.exchange == nullptr || read_count > 2 || write_count < 1 || write_count > 4) {
    PyErr_SetString(PyExc_ValueError, "expected up to 2 lists to read and 1 to 4 lists to write");
    return nullptr;
  }
  std::vector<FloorEntry> entries;
  for (Py_ssize_t k = 0; k < read_count + write_count; ++k) {
    Table table;
    if (!fill_single(table, k < read_count ? PyList_GetItem(reads, k) : PyList_GetItem(writes, k - read_count), kParam)) {
      return nullptr;
    }
    if (k == 0) entries.resize(table.tensors.size());
    if (table.tensors.size() != entries.size() || !table.views.empty()) {
      PyErr_SetString(PyExc_ValueError, "expected lists of the same length, of dense tensors");
      return nullptr;
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      const Tensor& tensor = table.tensors[i];
      const int64_t words = tensor.count() * kItemSize[static_cast<int>(tensor.dtype[kParam])] / 4;
      entries[i].words = k == 0 ? words : std::min(words, entries[i].words);
      uint32_t* data = static_cast<uint32_t*>(tensor.data[kParam]);
      if (k < read_count) entries[i].streams.read[k] = data;
      else entries[i].streams.write[k - read_count] = data;
    }
  }
  const int r = static_cast<int>(read_count), w = static_cast<int>(write_count);
  without_lock([&] { touch(entries, r, w, mask, *kernels); });
  Py_RETURN_NONE;
}

}  // namespace ingot
