// What a remembered plan relies on: types, devices, shapes, strides of all tensors, and whether their memory overlaps.
#include "facts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tensors.h"

namespace ingot {
namespace {

struct Extent {
  int64_t device;
  uintptr_t begin, end;
  bool written;
};

void append(std::string& facts, const void* data, size_t size) { facts.append(static_cast<const char*>(data), size); }

// Whether a tensor that is written lies between the addresses of another one.
bool any_overlap(std::vector<Extent>& extents) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.device != b.device ? a.device < b.device : a.begin < b.begin; });
  uintptr_t end = 0, written_end = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& extent = extents[i];
    if (i > 0 && extent.device != extents[i - 1].device) end = written_end = 0;
    if (extent.begin < (extent.written ? end : written_end)) return true;
    end = std::max(end, extent.end);
    if (extent.written) written_end = std::max(written_end, extent.end);
  }
  return false;
}

// Adds what is to be known of every tensor of a list; false if one cannot be read.
bool add_list(PyObject* list, bool written, std::string& facts, std::vector<Extent>& extents) {
  const Py_ssize_t count = PyList_Check(list) ? PyList_Size(list) : -1;
  if (count < 0) return false;
  append(facts, &count, sizeof count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* object = PyList_GetItem(list, i);
    DLTensor tensor;
    if (!describe_plain(object, &tensor, !written)) return false;
    append(facts, &tensor.device, sizeof tensor.device);
    append(facts, &tensor.dtype, sizeof tensor.dtype);
    append(facts, &tensor.ndim, sizeof tensor.ndim);
    append(facts, tensor.shape, tensor.ndim * sizeof(int64_t));
    if (tensor.strides != nullptr) append(facts, tensor.strides, tensor.ndim * sizeof(int64_t));
    const auto [begin, end] = extent_of(tensor);
    if (begin == end) continue;
    const int64_t device = (static_cast<int64_t>(tensor.device.device_type) << 32) | tensor.device.device_id;
    extents.push_back({device, begin, end, written});
  }
  return true;
}

}  // namespace

PyObject* facts(PyObject*, PyObject* arguments) {
  PyObject *written, *read;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &written, &PyList_Type, &read)) return nullptr;
  std::string known;
  std::vector<Extent> extents;
  bool readable = torch.exchange != nullptr;
  for (Py_ssize_t k = 0; readable && k < PyList_Size(written); ++k) {
    readable = add_list(PyList_GetItem(written, k), true, known, extents);
  }
  readable = readable && add_list(read, false, known, extents);
  if (!readable) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  PyObject* bytes = PyBytes_FromStringAndSize(known.data(), static_cast<Py_ssize_t>(known.size()));
  PyObject* result = bytes == nullptr ? nullptr : Py_BuildValue("NO", bytes, any_overlap(extents) ? Py_True : Py_False);
  return result;
}

}  // namespace ingot
