// Reading tensors from Python objects.
#include "tensors.h"

#include "driver/step.h"

#include <algorithm>
#include <iterator>

namespace ingot {

Torch torch;

namespace {

// The text of the current Python error, which is cleared. An interrupt stays set, for the caller of the module.
std::string take_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return "interrupted";
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* text = value != nullptr ? PyObject_Str(value) : nullptr;
  PyObject* bytes = text != nullptr ? PyUnicode_AsUTF8String(text) : nullptr;
  std::string result = bytes != nullptr ? PyBytes_AsString(bytes) : "unknown error";
  for (PyObject* object : {type, value, traceback, text, bytes}) Py_XDECREF(object);
  PyErr_Clear();
  return result;
}

bool is_plain(PyObject* object) { return Py_TYPE(object) == torch.tensor || Py_TYPE(object) == torch.parameter; }

bool is_plain(PyObject* object, std::string* why) {
  const bool plain = is_plain(object);
  if (!plain) *why = "it is neither a plain torch.Tensor nor a Parameter";
  return plain;
}

// Describes one tensor; false, and why it cannot be read.
bool describe(PyObject* object, DLTensor* out, std::string* why) {
  if (!is_plain(object, why)) return false;
  if (torch.exchange->dltensor_from_py_object_no_sync(object, out) == 0) return true;
  *why = take_error();
  return false;
}

bool is_negated(PyObject* object, std::string* why) {
  PyObject* answer = PyObject_CallFunctionObjArgs(torch.is_neg, object, nullptr);
  const bool negated = answer != Py_False;
  if (negated) *why = answer == nullptr ? take_error() : "it is a lazily negated view";
  Py_XDECREF(answer);
  return negated;
}

// Unless an interrupt is set already.
void set_value_error(const std::string& why) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, why.c_str());
}

std::string about(Py_ssize_t tensor, const std::string& why) { return "tensor " + std::to_string(tensor) + ", " + why; }

}  // namespace

// DLPack shows only the memory behind a lazily negated view. Such a view is the imaginary part of complex numbers, so its
// elements are not neighbours, unless somebody has made them so on purpose. Where asking every tensor in every step would take too
// long, those whose elements are neighbours are asked only when they have come to another address.
bool may_be_negated(const DLTensor& tensor) { return !is_row_major(tensor) || element_count(tensor) == 1; }

bool describe_plain(PyObject* object, DLTensor* out, bool ask_sign) {
  constexpr uint8_t kDLComplex = 5;
  std::string why;
  if (!describe(object, out, &why) || out->dtype.code == kDLComplex) return false;
  if (!ask_sign && !may_be_negated(*out)) return true;
  // Asking lets other threads run, which may change the tensor: it is read again.
  return !is_negated(object, &why) && describe(object, out, &why);
}

bool describe_quickly(PyObject* object, DLTensor* out) {
  if (!is_plain(object)) return false;
  if (torch.exchange->dltensor_from_py_object_no_sync(object, out) == 0) return true;
  PyErr_Clear();
  return false;
}

bool is_positive_plain(PyObject* object) {
  std::string why;
  return is_plain(object, &why) && !is_negated(object, &why);
}

bool is_inference(PyObject* tensor) {
  PyObject* answer = PyObject_CallFunctionObjArgs(torch.is_inference, tensor, nullptr);
  const bool ordinary = answer == Py_False;
  Py_XDECREF(answer);
  return !ordinary;
}

std::string fill(Table& table, TableBuilder& builder, const Lists& lists) {
  PyObject* leader = lists[kParam] != nullptr ? lists[kParam] : lists[kGrad];
  const Py_ssize_t count = PyList_Size(leader);
  for (PyObject* list : lists) {
    if (list != nullptr && (!PyList_Check(list) || PyList_Size(list) != count)) return "not lists of the same length";
  }
  const bool keyed = std::any_of(table.keys, std::end(table.keys), [](const auto& keys) { return !keys.empty(); });
  for (int k = 0; keyed && k < 1 + table.states; ++k) {
    if (static_cast<Py_ssize_t>(table.keys[k].size()) != count) return "not one key per tensor and operand";
  }
  const bool signs_matter = lists[kParam] != nullptr && lists[kGrad] != nullptr;  // not so for norms, nor to scale
  table.tensors.reserve(count);
  std::string why;
  // Asked before any address is read: torch lets other threads run meanwhile.
  for (int k = 0; signs_matter && k < kOperands; ++k) {
    for (Py_ssize_t i = 0; lists[k] != nullptr && i < count; ++i) {
      PyObject* object = PyList_GetItem(lists[k], i);
      if (!is_plain(object, &why) || is_negated(object, &why)) return about(i, k == kGrad ? "grad: " + why : why);
    }
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    DLTensor described[kOperands];
    const DLTensor* operands[kOperands] = {};
    for (int k = 0; k < kOperands; ++k) {
      if (lists[k] == nullptr) continue;
      if (!describe(PyList_GetItem(lists[k], i), &described[k], &why)) return about(i, why);
      operands[k] = &described[k];
    }
    why = builder.add(operands);
    if (!why.empty()) return about(i, why);
  }
  return {};
}

bool fill_single(Table& table, PyObject* tensors, Operand operand) {
  if (torch.exchange == nullptr || !PyList_Check(tensors)) {
    PyErr_SetString(PyExc_TypeError, "expected a list of tensors, after setup()");
    return false;
  }
  Lists lists = {};
  lists[operand] = tensors;
  TableBuilder builder(table, false);
  const std::string why = fill(table, builder, lists);
  if (!why.empty()) set_value_error(why);
  else schedule(table, *kernels);
  return why.empty();
}

bool read_keys(PyObject* keys, Table& table) {
  for (int k = 0; k < 1 + table.states; ++k) {
    PyObject* list = PyList_GetItem(keys, k);
    if (list == nullptr || PyList_Size(list) < 0) return false;
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
      table.keys[k].push_back(static_cast<uint32_t>(PyLong_AsUnsignedLongMask(PyList_GetItem(list, i))));
    }
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

bool read_scalars(const Table& table, PyObject* values, StepScalars* out) {
  const int count = kernels->variants[table.variant].scalars;
  if (!PyTuple_Check(values) || PyTuple_Size(values) != count) {
    PyErr_Format(PyExc_ValueError, "expected a tuple of %d scalars", count);
    return false;
  }
  for (int k = 0; k < count; ++k) {
    out->wide[k] = PyFloat_AsDouble(PyTuple_GetItem(values, k));
    if (out->wide[k] == -1.0 && PyErr_Occurred() != nullptr) return false;
    out->narrow[k] = static_cast<float>(out->wide[k]);
  }
  return true;
}

double* doubles(PyObject* object, int64_t count) {
  DLTensor tensor;
  DType dtype;
  std::string why;
  if (describe(object, &tensor, &why)) {
    const char* wrong = check_storage(tensor, &dtype);
    if (wrong != nullptr || dtype != DType::float64) why = "expected a float64 tensor on the CPU";
  }
  if (!why.empty()) {
    set_value_error(why);
    return nullptr;
  }
  if (!is_row_major(tensor) || element_count(tensor) != count) {
    PyErr_Format(PyExc_ValueError, "expected %lld consecutive elements", static_cast<long long>(count));
    return nullptr;
  }
  return reinterpret_cast<double*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

}  // namespace ingot
