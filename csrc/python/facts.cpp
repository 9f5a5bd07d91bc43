// What a remembered plan relies on: types, devices, shapes, strides of all tensors, and whether their memory overlaps.
#include "facts.h"

#include <algorithm>
#include <string>
#include <utility>
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
    if (!describe_plain(object, &tensor, true)) return false;
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

// Whether a tensor fills its memory without gaps or overlaps, in whatever order of its dimensions.
bool is_dense(const DLTensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride and size
  for (int d = 0; tensor.strides != nullptr && d < tensor.ndim; ++d) {
    if (tensor.shape[d] != 1) dimensions.emplace_back(tensor.strides[d], tensor.shape[d]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

bool same_order(const DLTensor& one, const DLTensor& other) {
  if (one.ndim != other.ndim) return false;
  for (int d = 0; d < one.ndim; ++d) {
    if (one.shape[d] != other.shape[d]) return false;
    if (one.shape[d] > 1 && (other.strides == nullptr || one.strides[d] != other.strides[d])) return false;
  }
  return true;
}

// Adds one list; its tensors must lie in memory like the leaders, the tensors of the first list.
bool add_addresses(PyObject* list, const std::vector<DLTensor>& leaders, std::vector<int64_t>& found, bool* row_major) {
  if (!PyList_Check(list) || PyList_Size(list) != static_cast<Py_ssize_t>(leaders.size())) return false;
  for (size_t i = 0; i < leaders.size(); ++i) {
    const DLTensor& leader = leaders[i];
    DLTensor tensor;
    if (!describe_quickly(PyList_GetItem(list, static_cast<Py_ssize_t>(i)), &tensor)) return false;
    found.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(tensor.data)) + static_cast<int64_t>(tensor.byte_offset));
    if (element_count(tensor) == 0) continue;
    if (is_row_major(tensor) && is_row_major(leader)) continue;
    if (leader.strides == nullptr || !is_dense(leader) || !same_order(leader, tensor)) return false;
    *row_major = false;
  }
  return true;
}

PyObject* bytes_of(const std::vector<int64_t>& numbers) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                   static_cast<Py_ssize_t>(numbers.size() * sizeof(int64_t)));
}

}  // namespace

PyObject* addresses(PyObject*, PyObject* lists) {
  if (!PyList_Check(lists) || PyList_Size(lists) == 0 || !PyList_Check(PyList_GetItem(lists, 0))) {
    PyErr_SetString(PyExc_TypeError, "expected a list of lists of tensors");
    return nullptr;
  }
  PyObject* params = PyList_GetItem(lists, 0);
  std::vector<DLTensor> leaders;
  std::vector<int64_t> found, sizes;
  bool row_major = true, readable = torch.exchange != nullptr;
  for (Py_ssize_t i = 0; readable && i < PyList_Size(params); ++i) {
    DLTensor tensor;
    readable = describe_quickly(PyList_GetItem(params, i), &tensor);
    if (!readable) break;
    leaders.push_back(tensor);
    sizes.push_back(element_count(tensor));
  }
  for (Py_ssize_t k = 0; readable && k < PyList_Size(lists); ++k) {
    readable = add_addresses(PyList_GetItem(lists, k), leaders, found, &row_major);
  }
  if (!readable) Py_RETURN_NONE;
  return Py_BuildValue("NNO", bytes_of(found), bytes_of(sizes), row_major ? Py_True : Py_False);
}

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
