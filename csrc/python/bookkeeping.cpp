// Lists and dictionaries of a remembered plan.
#include "bookkeeping.h"

namespace ingot {
namespace {

// Owns a reference.
class Object {
 public:
  explicit Object(PyObject* object) : object_(object) {}
  ~Object() { Py_XDECREF(object_); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  Object(Object&& other) noexcept : object_(other.release()) {}
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

PyObject* none_unless_error() {
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

// The value under a key, borrowed; null, without an error, if there is none.
PyObject* find(PyObject* dictionary, PyObject* key) {
  return PyDict_Check(dictionary) ? PyDict_GetItemWithError(dictionary, key) : nullptr;
}

// The attribute `grad` of every tensor; null if one has none, or with an error set.
Object gradients_of(PyObject* params, Py_ssize_t count) {
  Object name(PyUnicode_FromString("grad")), grads(PyList_New(count));
  if (!name || !grads) return Object(nullptr);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* grad = PyObject_GetAttr(PyList_GetItem(params, i), name.get());
    if (grad == nullptr || grad == Py_None) {
      Py_XDECREF(grad);
      return Object(nullptr);
    }
    PyList_SetItem(grads.get(), i, grad);
  }
  return grads;
}

// The value under a key in every dictionary; null if one has none, or with an error set.
Object values_of(PyObject* slots, PyObject* key, Py_ssize_t count) {
  Object values(PyList_New(count));
  if (!values) return values;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = find(PyList_GetItem(slots, i), key);
    if (value == nullptr) return Object(nullptr);
    Py_INCREF(value);
    PyList_SetItem(values.get(), i, value);
  }
  return values;
}

// The step count that all dictionaries share, a Python int; null if they differ, or with an error set.
Object common_step(PyObject* slots, Py_ssize_t count) {
  Object key(PyUnicode_InternFromString("step"));
  PyObject* first = nullptr;
  for (Py_ssize_t i = 0; key && i < count; ++i) {
    PyObject* step = find(PyList_GetItem(slots, i), key.get());
    if (step == nullptr || !PyLong_CheckExact(step)) return Object(nullptr);
    if (first == nullptr) first = step;
    if (step != first && PyObject_RichCompareBool(step, first, Py_EQ) != 1) return Object(nullptr);
  }
  Py_XINCREF(first);
  return Object(first);
}

}  // namespace

PyObject* identical(PyObject*, PyObject* arguments) {
  PyObject *one, *two;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &one, &PyList_Type, &two)) return nullptr;
  const Py_ssize_t count = PyList_Size(one);
  bool same = PyList_Size(two) == count;
  for (Py_ssize_t i = 0; same && i < count; ++i) same = PyList_GetItem(one, i) == PyList_GetItem(two, i);
  return PyBool_FromLong(same);
}

PyObject* gather(PyObject*, PyObject* arguments) {
  PyObject *params, *slots, *names;
  int counted;
  if (!PyArg_ParseTuple(arguments, "O!O!O!p", &PyList_Type, &params, &PyList_Type, &slots, &PyTuple_Type, &names,
                        &counted)) {
    return nullptr;
  }
  const Py_ssize_t count = PyList_Size(params), states = PyTuple_Size(names);
  if (PyList_Size(slots) != count) return none_unless_error();
  const Object step = counted ? common_step(slots, count) : Object(PyLong_FromLong(0));
  if (!step) return none_unless_error();
  const Object lists(PyList_New(states));
  for (Py_ssize_t k = 0; lists && k < states; ++k) {
    Object values = values_of(slots, PyTuple_GetItem(names, k), count);
    if (!values) return none_unless_error();
    PyList_SetItem(lists.get(), k, values.release());
  }
  const Object grads = lists ? gradients_of(params, count) : Object(nullptr);
  if (!grads) return none_unless_error();
  return PyTuple_Pack(3, step.get(), grads.get(), lists.get());
}

}  // namespace ingot
