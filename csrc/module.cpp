// The Python module ingot._native: reads tensors through DLPack, runs steps without the interpreter lock.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "measure.h"
#include "schedule.h"
#include "step.h"
#include "table.h"

namespace ingot {
namespace {

const Kernels* kernels = nullptr;                // chosen when the module is loaded
const DLPackExchangeAPI* exchange = nullptr;     // torch's, given by setup()
PyTypeObject* tensor_types[2] = {nullptr, nullptr};  // torch.Tensor, torch.nn.Parameter: no subclass has plain storage
constexpr const char* kTableName = "ingot._native.table";

// Choice of instruction set ------------------------------------------------------------------------------------------

struct Choice {
  const Kernels* kernels;
  bool supported;
};

// From the best to the one that every machine has.
std::vector<Choice> choices() {
#ifdef INGOT_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return {{&kAvx512, avx512}, {&kAvx2, avx2}, {&kBaseline, true}};
#else
  return {{&kBaseline, true}};
#endif
}

// The best that the machine has, or the one that the environment variable INGOT_ISA names; null with an error set.
const Kernels* choose_kernels() {
  const char* wanted = std::getenv("INGOT_ISA");
  for (const Choice& choice : choices()) {
    if (wanted != nullptr && *wanted != '\0') {
      if (std::strcmp(wanted, choice.kernels->name) != 0) continue;
      if (choice.supported) return choice.kernels;
      PyErr_Format(PyExc_ImportError, "INGOT_ISA=%s, but this machine does not have it", wanted);
      return nullptr;
    }
    if (choice.supported) return choice.kernels;
  }
  PyErr_Format(PyExc_ImportError, "INGOT_ISA=%s is not one of the instruction sets built in", wanted);
  return nullptr;
}

// Reading tensors ------------------------------------------------------------------------------------------------------

// The text of the current Python error, which is cleared.
std::string take_error() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* text = value != nullptr ? PyObject_Str(value) : nullptr;
  PyObject* bytes = text != nullptr ? PyUnicode_AsUTF8String(text) : nullptr;
  std::string result = bytes != nullptr ? PyBytes_AsString(bytes) : "unknown error";
  for (PyObject* object : {type, value, traceback, text, bytes}) Py_XDECREF(object);
  PyErr_Clear();
  return result;
}

// Describes one tensor; an empty string, or why it cannot be read.
std::string describe(PyObject* object, DLTensor* out) {
  if (Py_TYPE(object) != tensor_types[0] && Py_TYPE(object) != tensor_types[1]) {
    return "it is neither a plain torch.Tensor nor a Parameter";
  }
  if (exchange->dltensor_from_py_object_no_sync(object, out) != 0) return take_error();
  return {};
}

// Lists of one table, null for operands it does not have; borrowed.
using Lists = PyObject* [kOperands];

// An empty string, or why the tensors cannot be taken.
std::string fill(Table& table, TableBuilder& builder, const Lists& lists) {
  PyObject* leader = lists[kParam] != nullptr ? lists[kParam] : lists[kGrad];
  const Py_ssize_t count = PyList_Size(leader);
  for (PyObject* list : lists) {
    if (list != nullptr && PyList_Size(list) != count) return "lists of different lengths";
  }
  table.tensors.reserve(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    DLTensor described[kOperands];
    const DLTensor* operands[kOperands] = {};
    for (int k = 0; k < kOperands; ++k) {
      if (lists[k] == nullptr) continue;
      const std::string why = describe(PyList_GetItem(lists[k], i), &described[k]);
      if (!why.empty()) return "tensor " + std::to_string(i) + ": " + why;
      operands[k] = &described[k];
    }
    const std::string why = builder.add(operands);
    if (!why.empty()) return "tensor " + std::to_string(i) + ", " + why;
  }
  return {};
}

void free_table(PyObject* capsule) { delete static_cast<Table*>(PyCapsule_GetPointer(capsule, kTableName)); }

// Reads one list of uint32 keys per operand; false with an error set.
bool read_keys(PyObject* keys, Table& table) {
  for (int k = 0; k < 1 + table.states; ++k) {
    PyObject* list = PyList_GetItem(keys, k);
    if (list == nullptr) return false;
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
      table.keys[k].push_back(static_cast<uint32_t>(PyLong_AsUnsignedLongMask(PyList_GetItem(list, i))));
    }
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

// prepare(variant, params, grads, states, masters, keys, inner_dims) -> table, or a string that says why not
PyObject* prepare(PyObject*, PyObject* arguments) {
  int variant, inner_dims;
  PyObject *params, *grads, *states, *masters, *keys;
  if (!PyArg_ParseTuple(arguments, "iO!O!O!OOi", &variant, &PyList_Type, &params, &PyList_Type, &grads, &PyList_Type,
                        &states, &masters, &keys, &inner_dims)) {
    return nullptr;
  }
  if (exchange == nullptr || variant < 0 || variant >= kernels->variant_count ||
      PyList_Size(states) != kernels->variants[variant].states) {
    PyErr_SetString(PyExc_ValueError, "setup() was not called, or no such variant, or another number of states");
    return nullptr;
  }
  auto table = std::make_unique<Table>();
  table->variant = variant;
  table->states = static_cast<int>(PyList_Size(states));
  table->masters = masters != Py_None;
  if (keys != Py_None && !read_keys(keys, *table)) return nullptr;
  Lists lists = {params, grads};
  for (int k = 0; k < table->states; ++k) lists[kState + k] = PyList_GetItem(states, k);
  if (table->masters) {
    lists[kParam] = masters;
    lists[kStored] = params;
  }
  TableBuilder builder(*table, true, kernels->variants[variant].rows, inner_dims);
  const std::string why = fill(*table, builder, lists);
  if (!why.empty()) return PyUnicode_FromString(why.c_str());
  return PyCapsule_New(table.release(), kTableName, free_table);
}

// A table of gradients, or of tensors to change; null with an error set.
bool fill_single(Table& table, PyObject* tensors, Operand operand) {
  if (exchange == nullptr || !PyList_Check(tensors)) {
    PyErr_SetString(PyExc_TypeError, "expected a list of tensors, after setup()");
    return false;
  }
  Lists lists = {};
  lists[operand] = tensors;
  TableBuilder builder(table, false);
  const std::string why = fill(table, builder, lists);
  if (!why.empty()) PyErr_SetString(PyExc_ValueError, why.c_str());
  return why.empty();
}

// A float64 tensor of `count` consecutive elements; null with an error set.
double* doubles(PyObject* object, int64_t count) {
  DLTensor tensor;
  DType dtype;
  std::string why = describe(object, &tensor);
  if (why.empty()) {
    const char* wrong = check_storage(tensor, &dtype);
    if (wrong != nullptr || dtype != DType::float64) why = "expected a float64 tensor on the CPU";
  }
  if (!why.empty()) {
    PyErr_SetString(PyExc_ValueError, why.c_str());
    return nullptr;
  }
  int64_t elements = 1, expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    if (tensor.strides != nullptr && tensor.shape[d] > 1 && tensor.strides[d] != expected) elements = -1;
    expected *= tensor.shape[d];
  }
  if (elements < 0 || expected != count) {
    PyErr_Format(PyExc_ValueError, "expected %lld consecutive elements", static_cast<long long>(count));
    return nullptr;
  }
  return reinterpret_cast<double*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// Running --------------------------------------------------------------------------------------------------------------

bool read_scalars(const Table& table, PyObject* scalars, double grad_scale, StepScalars* out) {
  const int count = kernels->variants[table.variant].scalars;
  if (!PyTuple_Check(scalars) || PyTuple_Size(scalars) != count) {
    PyErr_Format(PyExc_ValueError, "expected a tuple of %d scalars", count);
    return false;
  }
  for (int k = 0; k < count; ++k) {
    out->wide[k] = PyFloat_AsDouble(PyTuple_GetItem(scalars, k));
    out->narrow[k] = static_cast<float>(out->wide[k]);
  }
  out->grad_scale = grad_scale;
  return PyErr_Occurred() == nullptr;
}

// Runs C++ without the interpreter lock; false with an error set.
template <class Work>
bool without_lock(Work work) {
  bool memory = true;
  Py_BEGIN_ALLOW_THREADS;
  try {
    work();
  } catch (const std::bad_alloc&) {
    memory = false;
  }
  Py_END_ALLOW_THREADS;
  if (!memory) PyErr_NoMemory();
  return memory;
}

const Table* table_of(PyObject* capsule) { return static_cast<Table*>(PyCapsule_GetPointer(capsule, kTableName)); }

// run(table, scalars, grad_scale)
PyObject* run(PyObject*, PyObject* arguments) {
  PyObject *capsule, *given;
  double grad_scale;
  if (!PyArg_ParseTuple(arguments, "OOd", &capsule, &given, &grad_scale)) return nullptr;
  const Table* table = table_of(capsule);
  StepScalars scalars = {};
  if (table == nullptr || !read_scalars(*table, given, grad_scale, &scalars)) return nullptr;
  const bool done = without_lock([&] {
    if (kernels->variants[table->variant].two_pass) TwoPass(*table, *kernels, scalars).run();
    else run_elementwise(*table, *kernels, scalars);
  });
  if (!done) return nullptr;
  Py_RETURN_NONE;
}

int64_t total_rows(const Table& table) {
  int64_t rows = 0;
  for (const Tensor& tensor : table.tensors) rows += tensor.rows;
  return rows;
}

int sum_count(const Table& table) {
  int count = 0;
  for (int k = 0; k < kSums; ++k) count += kernels->variants[table.variant].sums >> k & 1u;
  return count;
}

// rows(table) -> the number of rows of all tensors
PyObject* rows(PyObject*, PyObject* capsule) {
  const Table* table = table_of(capsule);
  return table != nullptr ? PyLong_FromLongLong(total_rows(*table)) : nullptr;
}

bool check_two_pass(const Table* table) {
  if (table == nullptr) return false;
  if (kernels->variants[table->variant].two_pass) return true;
  PyErr_SetString(PyExc_ValueError, "not a two-pass optimizer");
  return false;
}

// first(table, scalars, grad_scale, sums): adds to sums, [names, rows]
PyObject* first(PyObject*, PyObject* arguments) {
  PyObject *capsule, *given, *out;
  double grad_scale;
  if (!PyArg_ParseTuple(arguments, "OOdO", &capsule, &given, &grad_scale, &out)) return nullptr;
  const Table* table = table_of(capsule);
  StepScalars scalars = {};
  if (!check_two_pass(table) || !read_scalars(*table, given, grad_scale, &scalars)) return nullptr;
  const int64_t count = total_rows(*table);
  double* sums = doubles(out, count * sum_count(*table));
  if (sums == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  if (!without_lock([&] { TwoPass(*table, *kernels, scalars).first(sums, count); })) return nullptr;
  Py_RETURN_NONE;
}

// second(table, scalars, grad_scale, keep, rate)
PyObject* second(PyObject*, PyObject* arguments) {
  PyObject *capsule, *given, *keeps, *rates;
  double grad_scale;
  if (!PyArg_ParseTuple(arguments, "OOdOO", &capsule, &given, &grad_scale, &keeps, &rates)) return nullptr;
  const Table* table = table_of(capsule);
  StepScalars scalars = {};
  if (!check_two_pass(table) || !read_scalars(*table, given, grad_scale, &scalars)) return nullptr;
  const double* keep = doubles(keeps, total_rows(*table));
  const double* rate = doubles(rates, total_rows(*table));
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!without_lock([&] { TwoPass(*table, *kernels, scalars).second(keep, rate); })) return nullptr;
  Py_RETURN_NONE;
}

// squares(tensors) -> float
PyObject* squares(PyObject*, PyObject* tensors) {
  Table table;
  double result = 0;
  if (!fill_single(table, tensors, kGrad)) return nullptr;
  if (!without_lock([&] { result = sum_of_squares(table, *kernels); })) return nullptr;
  return PyFloat_FromDouble(result);
}

// largest(tensors) -> float
PyObject* largest(PyObject*, PyObject* tensors) {
  Table table;
  double result = 0;
  if (!fill_single(table, tensors, kGrad)) return nullptr;
  if (!without_lock([&] { result = largest_magnitude(table, *kernels); })) return nullptr;
  return PyFloat_FromDouble(result);
}

// scale(tensors, factor), in place
PyObject* scale_in_place(PyObject*, PyObject* arguments) {
  PyObject* tensors;
  double factor;
  if (!PyArg_ParseTuple(arguments, "Od", &tensors, &factor)) return nullptr;
  Table table;
  if (!fill_single(table, tensors, kParam)) return nullptr;
  if (!without_lock([&] { scale(table, *kernels, factor); })) return nullptr;
  Py_RETURN_NONE;
}

// floor(reads, writes): lists of lists of dense tensors; every tensor of `writes` is read and written back unchanged
PyObject* floor(PyObject*, PyObject* arguments) {
  PyObject *reads, *writes;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &reads, &PyList_Type, &writes)) return nullptr;
  const Py_ssize_t read_count = PyList_Size(reads), write_count = PyList_Size(writes);
  if (exchange == nullptr || read_count > 2 || write_count < 1 || write_count > 4) {
    PyErr_SetString(PyExc_ValueError, "expected up to 2 lists to read and 1 to 4 lists to write");
    return nullptr;
  }
  std::vector<FloorEntry> entries;
  for (Py_ssize_t k = 0; k < read_count + write_count; ++k) {
    Table table;
    if (!fill_single(table, k < read_count ? PyList_GetItem(reads, k) : PyList_GetItem(writes, k - read_count), kParam)) {
      return nullptr;
    }
    entries.resize(table.tensors.size());
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
  if (!without_lock([&] { touch(entries, r, w, *kernels); })) return nullptr;
  Py_RETURN_NONE;
}

// Module ---------------------------------------------------------------------------------------------------------------

// setup(exchange_api, parallel_for, tensor_type, parameter_type): what torch provides
PyObject* setup(PyObject*, PyObject* arguments) {
  PyObject *capsule, *tensor_type, *parameter_type;
  unsigned long long address;
  if (!PyArg_ParseTuple(arguments, "OKOO", &capsule, &address, &tensor_type, &parameter_type)) return nullptr;
  const auto* api = static_cast<DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  if (api == nullptr) return nullptr;
  if (api->version.major != 1 || api->dltensor_from_py_object_no_sync == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "torch's DLPack exchange table has another version");
    return nullptr;
  }
  exchange = api;
  parallel_for = reinterpret_cast<ParallelFor>(static_cast<uintptr_t>(address));
  Py_INCREF(tensor_type);
  Py_INCREF(parameter_type);
  tensor_types[0] = reinterpret_cast<PyTypeObject*>(tensor_type);
  tensor_types[1] = reinterpret_cast<PyTypeObject*>(parameter_type);
  Py_RETURN_NONE;
}

// isa() -> the instruction set in use
PyObject* isa(PyObject*, PyObject*) { return PyUnicode_FromString(kernels->name); }

// variants() -> {name: number}
PyObject* variants(PyObject*, PyObject*) {
  PyObject* result = PyDict_New();
  for (int i = 0; result != nullptr && i < kernels->variant_count; ++i) {
    PyObject* number = PyLong_FromLong(i);
    if (number == nullptr || PyDict_SetItemString(result, kernels->variants[i].name, number) != 0) Py_CLEAR(result);
    Py_XDECREF(number);
  }
  return result;
}

PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, nullptr},
    {"isa", isa, METH_NOARGS, nullptr},
    {"variants", variants, METH_NOARGS, nullptr},
    {"prepare", prepare, METH_VARARGS, nullptr},
    {"run", run, METH_VARARGS, nullptr},
    {"rows", rows, METH_O, nullptr},
    {"first", first, METH_VARARGS, nullptr},
    {"second", second, METH_VARARGS, nullptr},
    {"squares", squares, METH_O, nullptr},
    {"largest", largest, METH_O, nullptr},
    {"scale", scale_in_place, METH_VARARGS, nullptr},
    {"floor", floor, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace ingot

PyMODINIT_FUNC PyInit__native() {
  ingot::kernels = ingot::choose_kernels();
  return ingot::kernels != nullptr ? PyModule_Create(&ingot::definition) : nullptr;
}
