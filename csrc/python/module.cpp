// The Python module ingot._native: reads tensors through DLPack, runs steps without the interpreter lock.
#include "tensors.h"

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "bench/floor.h"
#include "facts.h"
#include "interpreter.h"
#include "driver/measure.h"
#include "measures.h"
#include "quick.h"
#include "driver/schedule.h"
#include "driver/step.h"

namespace ingot {

const Kernels* kernels = nullptr;

namespace {

void free_table(PyObject* capsule) { delete static_cast<Table*>(PyCapsule_GetPointer(capsule, kTableName)); }

// prepare(variant, params, grads, states, masters, keys, inner_dims, coded) -> table, or a string that says why not
//   coded: states are in blocks, and each has a list of codes and one of scales
PyObject* prepare(PyObject*, PyObject* arguments) {
  int variant, inner_dims, coded;
  PyObject *params, *grads, *states, *masters, *keys;
  if (!PyArg_ParseTuple(arguments, "iO!O!O!OOip", &variant, &PyList_Type, &params, &PyList_Type, &grads, &PyList_Type, &states,
                        &masters, &keys, &inner_dims, &coded)) {
    return nullptr;
  }
  const int parts = coded ? 2 : 1;
  if (torch.exchange == nullptr) return PyErr_Format(PyExc_ValueError, "setup() was not called");
  if (variant < 0 || variant >= kVariantCount) {
    return PyErr_Format(PyExc_ValueError, "no variant %d; there are %d", variant, kVariantCount);
  }
  if (const int needed = parts * kernels->variants[variant].states; PyList_Size(states) != needed) {
    return PyErr_Format(PyExc_ValueError, "%zd lists of states, not %d", PyList_Size(states), needed);
  }
  auto table = std::make_unique<Table>();
  table->variant = variant;
  table->states = kernels->variants[variant].states;
  table->coded = coded && table->states > 0;
  table->masters = masters != Py_None;
  if (keys != Py_None && !read_keys(keys, *table)) return nullptr;
  Lists lists = {params, grads};
  for (int k = 0; k < table->states; ++k) {
    lists[kState + k] = PyList_GetItem(states, parts * k);
    if (table->coded) lists[kScale + k] = PyList_GetItem(states, parts * k + 1);
  }
  if (table->masters) {
    lists[kParam] = masters;
    lists[kStored] = params;
  }
  const Variant& loops = kernels->variants[variant];
  TableBuilder builder(*table, true, loops.rows, inner_dims, loops.unsigned_states);
  const std::string why = fill(*table, builder, lists);
  if (!why.empty()) return PyErr_Occurred() == nullptr ? PyUnicode_FromString(why.c_str()) : nullptr;
  schedule(*table, *kernels);
  return PyCapsule_New(table.release(), kTableName, free_table);
}

// Running --------------------------------------------------------------------------------------------------------------

// A table that remember() has taken over is empty.
const Table* table_of(PyObject* capsule) {
  const auto* table = static_cast<Table*>(PyCapsule_GetPointer(capsule, kTableName));
  if (table == nullptr || table->variant >= 0) return table;
  PyErr_SetString(PyExc_ValueError, "the table was handed to remember()");
  return nullptr;
}

// run(table, scalars, grad_scale)
PyObject* run(PyObject*, PyObject* arguments) {
  PyObject *capsule, *given;
  double grad_scale;
  if (!PyArg_ParseTuple(arguments, "OOd", &capsule, &given, &grad_scale)) return nullptr;
  const Table* table = table_of(capsule);
  StepScalars scalars = {};
  scalars.grad_scale = grad_scale;
  if (table == nullptr || !read_scalars(*table, given, &scalars)) return nullptr;
  const Job job = {table, &scalars};
  without_lock([&] { run_jobs(&job, &job + 1, *kernels); });
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
  scalars.grad_scale = grad_scale;
  if (!check_two_pass(table) || !read_scalars(*table, given, &scalars)) return nullptr;
  const int64_t count = total_rows(*table);
  double* sums = doubles(out, count * sum_count(*table));
  if (sums == nullptr && PyErr_Occurred() != nullptr) return nullptr;
  without_lock([&] { TwoPass(*table, *kernels, scalars).first(sums, count); });
  Py_RETURN_NONE;
}

// second(table, scalars, grad_scale, keep, rate)
PyObject* second(PyObject*, PyObject* arguments) {
  PyObject *capsule, *given, *keeps, *rates;
  double grad_scale;
  if (!PyArg_ParseTuple(arguments, "OOdOO", &capsule, &given, &grad_scale, &keeps, &rates)) return nullptr;
  const Table* table = table_of(capsule);
  StepScalars scalars = {};
  scalars.grad_scale = grad_scale;
  if (!check_two_pass(table) || !read_scalars(*table, given, &scalars)) return nullptr;
  const double* keep = doubles(keeps, total_rows(*table));
  const double* rate = doubles(rates, total_rows(*table));
  if (PyErr_Occurred() != nullptr) return nullptr;
  without_lock([&] { TwoPass(*table, *kernels, scalars).second(keep, rate); });
  Py_RETURN_NONE;
}

// grad_squares(table) -> float
PyObject* grad_squares(PyObject*, PyObject* capsule) {
  const Table* table = table_of(capsule);
  if (table == nullptr) return nullptr;
  double result = 0;
  without_lock([&] { result = sum_of_squares(*table, *kernels); });
  return PyFloat_FromDouble(result);
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
  PyObject* is_neg = PyObject_GetAttrString(tensor_type, "is_neg");
  PyObject* is_inference = PyObject_GetAttrString(tensor_type, "is_inference");
  if (is_neg == nullptr || is_inference == nullptr) return nullptr;
  torch.exchange = api;
  parallel_for = reinterpret_cast<ParallelFor>(static_cast<uintptr_t>(address));
  Py_INCREF(tensor_type);
  Py_INCREF(parameter_type);
  torch.tensor = reinterpret_cast<PyTypeObject*>(tensor_type);
  torch.parameter = reinterpret_cast<PyTypeObject*>(parameter_type);
  torch.is_neg = is_neg;
  torch.is_inference = is_inference;
  Py_RETURN_NONE;
}

// isa() -> the instruction set in use
PyObject* isa(PyObject*, PyObject*) { return PyUnicode_FromString(kernels->name); }

// variants() -> {name: (number, digest of the math it was compiled from)}
PyObject* variants(PyObject*, PyObject*) {
  PyObject* result = PyDict_New();
  for (int i = 0; result != nullptr && i < kVariantCount; ++i) {
    const Variant& variant = kernels->variants[i];
    PyObject* value = Py_BuildValue("is", i, variant.digest);
    if (value == nullptr || PyDict_SetItemString(result, variant.name, value) != 0) Py_CLEAR(result);
    Py_XDECREF(value);
  }
  return result;
}

// No C++ exception may pass through C.
template <auto method, class... Arguments>
PyObject* guarded(Arguments... arguments) {
  try {
    return method(arguments...);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// A method that is given its arguments as an array: no tuple is made of them, nor taken apart.
using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyCFunction fast(FastCall method) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method)); }

PyMethodDef methods[] = {
    {"setup", guarded<setup>, METH_VARARGS, nullptr},
    {"isa", guarded<isa>, METH_NOARGS, nullptr},
    {"variants", guarded<variants>, METH_NOARGS, nullptr},
    {"prepare", guarded<prepare>, METH_VARARGS, nullptr},
    {"run", guarded<run>, METH_VARARGS, nullptr},
    {"rows", guarded<rows>, METH_O, nullptr},
    {"first", guarded<first>, METH_VARARGS, nullptr},
    {"second", guarded<second>, METH_VARARGS, nullptr},
    {"grad_squares", guarded<grad_squares>, METH_O, nullptr},
    {"squares", guarded<squares>, METH_O, nullptr},
    {"largest", guarded<largest>, METH_O, nullptr},
    {"scale", guarded<scale_in_place>, METH_VARARGS, nullptr},
    {"facts", guarded<facts>, METH_VARARGS, nullptr},
    {"addresses", guarded<addresses>, METH_O, nullptr},
    {"remember", guarded<remember>, METH_VARARGS, nullptr},
    {"quick_step", fast(guarded<quick_step>), METH_FASTCALL, nullptr},
    {"forget_gradients", guarded<forget_gradients>, METH_O, nullptr},
    {"floor", guarded<floor>, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace ingot

PyMODINIT_FUNC PyInit__native() {
  ingot::kernels = ingot::choose_kernels();
  return ingot::kernels != nullptr ? PyModule_Create(&ingot::definition) : nullptr;
}
