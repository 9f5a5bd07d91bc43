// Remembers a step that was made the whole way, so that the next one like it can take the quick path.
#include <algorithm>

#include "quick.h"
#include "tensors.h"

namespace ingot {

const Names& names() {
  const auto intern = PyUnicode_InternFromString;
  static const Names all = {intern("param_groups"),  intern("state"),     intern("backend"),    intern("precision"),
                            intern("norm_group"),    intern("found_inf"), intern("grad_scale"), intern("params"),
                            intern("grad"),          intern("step"),      intern("lr"),         intern("maximize"),
                            intern("rounding_seed"), intern("all")};
  return all;
}

int operand_number(const Table& table, int k) {
  if (k == 0) return table.masters ? kStored : kParam;
  if (k == 1) return kGrad;
  const int state = (k - 2) / state_parts(table), part = (k - 2) % state_parts(table);
  if (state >= table.states) return kParam;
  return (part == 0 ? kState : kScale) + state;
}

namespace {

// Adds the layout of operand k of tensor i; false if this is not a plain tensor on the CPU.
bool remember_layout(PyObject* object, int64_t i, int k, RememberedBucket& bucket) {
  DLTensor tensor;
  if (!describe_plain(object, &tensor, false) || tensor.device.device_type != kDLCPU) return false;
  if (k != 1 && may_be_negated(tensor)) bucket.unsure.emplace_back(i, k);
  std::vector<int64_t>& layout = bucket.layout;
  layout.push_back(tensor.dtype.code << 8 | tensor.dtype.bits);
  layout.push_back(tensor.ndim);
  const auto [begin, end] = extent_of(tensor);
  layout.push_back(static_cast<int64_t>(end - begin));
  layout.insert(layout.end(), tensor.shape, tensor.shape + tensor.ndim);
  if (tensor.strides == nullptr) return false;  // torch always gives them
  layout.insert(layout.end(), tensor.strides, tensor.strides + tensor.ndim);
  return true;
}

void free_plan(PyObject* capsule) { delete static_cast<Plan*>(PyCapsule_GetPointer(capsule, kPlanName)); }

bool read_numbers(PyObject* list, std::vector<int64_t>& out) {
  for (Py_ssize_t i = 0; PyList_Check(list) && i < PyList_Size(list); ++i) {
    out.push_back(PyLong_AsLongLong(PyList_GetItem(list, i)));
  }
  return PyErr_Occurred() == nullptr;
}

bool remember_groups(PyObject* groups, PyObject* options, Plan& plan) {
  if (groups == nullptr || !PyList_CheckExact(groups) || PyList_Size(options) != PyList_Size(groups)) return false;
  for (Py_ssize_t g = 0; g < PyList_Size(groups); ++g) {
    PyObject* dictionary = PyList_GetItem(groups, g);
    PyObject* params = PyDict_Check(dictionary) ? find(dictionary, names().params) : nullptr;
    if (params == nullptr || !PyList_CheckExact(params)) return false;
    RememberedGroup group;
    group.dictionary = dictionary;
    for (Py_ssize_t i = 0; i < PyList_Size(params); ++i) group.params.push_back(PyList_GetItem(params, i));
    PyObject* compared;
    int changes_in_place;
    if (!PyArg_ParseTuple(PyList_GetItem(options, g), "O!p", &PyTuple_Type, &compared, &changes_in_place)) return false;
    group.changes_in_place = changes_in_place;
    for (Py_ssize_t i = 0; i < PyTuple_Size(compared); ++i) {
      PyObject* name = PyTuple_GetItem(compared, i);
      PyObject* value = PyUnicode_Check(name) ? find(dictionary, name) : nullptr;
      if (value == nullptr) return false;
      group.options.emplace_back(Owned::share(name), Owned::share(value));
    }
    plan.groups.push_back(std::move(group));
  }
  return true;
}

bool remember_state(PyObject* state, Plan& plan) {
  if (state == nullptr || !PyDict_Check(state)) return false;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(state, &at, &key, &value);) {
    if (!PyDict_CheckExact(value)) return false;
    plan.owners.push_back(key);
    plan.slots.push_back(value);
  }
  return true;
}

// The layouts of all operands of a bucket, in the order in which a step reads them.
bool remember_layouts(PyObject* lists, RememberedBucket& bucket) {
  const int operands = operand_count(bucket.table);
  if (!PyList_Check(lists) || PyList_Size(lists) != operands) return false;
  for (int64_t i = 0; i < bucket.size(); ++i) {
    for (int k = 0; k < operands; ++k) {
      PyObject* list = PyList_GetItem(lists, k);
      if (PyList_Size(list) != bucket.size() || !remember_layout(PyList_GetItem(list, i), i, k, bucket)) return false;
    }
  }
  return true;
}

bool remember_bucket(PyObject* part, Plan& plan) {
  PyObject *capsule, *lists, *ordinals, *positions, *entries, *scalars, *starts;
  auto bucket = std::make_unique<RememberedBucket>();
  int by_count, counted;
  if (!PyArg_ParseTuple(part, "OOnnOOOOppO", &capsule, &lists, &bucket->group, &bucket->scope, &ordinals, &positions, &entries,
                        &scalars, &by_count, &counted, &starts)) {
    return false;
  }
  auto* table = static_cast<Table*>(PyCapsule_GetPointer(capsule, kTableName));
  if (table == nullptr) return false;
  if (table->variant < 0) return false;
  bucket->table = std::move(*table);
  table->variant = -1;
  bucket->by_count = by_count;
  bucket->counted = counted;
  bucket->entries = Owned::share(entries);
  bucket->scalars = Owned::share(scalars);
  plan.scopes = std::max(plan.scopes, bucket->scope + 1);
  const auto all_below = [&](const std::vector<int64_t>& numbers, size_t end, int64_t lowest) {
    return static_cast<int64_t>(numbers.size()) == bucket->size() &&
           std::all_of(numbers.begin(), numbers.end(), [=](int64_t n) { return n >= lowest && n < static_cast<int64_t>(end); });
  };
  bool fits = read_numbers(ordinals, bucket->ordinals) && read_numbers(positions, bucket->positions) &&
              read_numbers(starts, bucket->starts) && PyTuple_Check(entries) &&
              PyTuple_Size(entries) == operand_count(bucket->table) - 2 && remember_layouts(lists, *bucket) &&
              all_below(bucket->ordinals, plan.present.size(), 0) && all_below(bucket->positions, plan.slots.size(), -1) &&
              (!bucket->table.is_stochastic() || static_cast<int64_t>(bucket->starts.size()) == bucket->size());
  for (Py_ssize_t k = 0; fits && k < PyTuple_Size(entries); ++k) bucket->names.push_back(PyTuple_GetItem(entries, k));
  fits = fits && bucket->group >= 0 && bucket->group < static_cast<Py_ssize_t>(plan.groups.size()) && bucket->scope >= 0;
  plan.buckets.push_back(std::move(bucket));
  return fits;
}

}  // namespace

PyObject* remember(PyObject*, PyObject* arguments) {
  PyObject *attributes, *increment, *options, *refits, *clips, *guard, *present, *parts;
  if (!PyArg_ParseTuple(arguments, "O!OO!OOOO!O!", &PyDict_Type, &attributes, &increment, &PyList_Type, &options, &refits, &clips,
                        &guard, &PyList_Type, &present, &PyList_Type, &parts)) {
    return nullptr;
  }
  auto plan = std::make_unique<Plan>();
  PyObject* groups = find(attributes, names().param_groups);
  PyObject* state = find(attributes, names().state);
  plan->param_groups = groups;
  plan->state = state;
  plan->backend = Owned::share(find(attributes, names().backend));
  plan->precision = Owned::share(find(attributes, names().precision));
  plan->increment_version = Owned::share(increment);
  plan->refits = Owned::share(refits);
  if (clips != Py_None) plan->clips = Owned::share(clips);
  if (guard != Py_None) plan->guard = Owned::share(guard);
  for (Py_ssize_t i = 0; i < PyList_Size(present); ++i) {
    PyObject* has = PyList_GetItem(present, i);
    plan->present.push_back(has == Py_None ? Gradient::kNotAsked : has == Py_True ? Gradient::kPresent : Gradient::kNone);
  }
  bool fits = remember_groups(groups, options, *plan) && remember_state(state, *plan);
  for (Py_ssize_t b = 0; fits && b < PyList_Size(parts); ++b) fits = remember_bucket(PyList_GetItem(parts, b), *plan);
  if (!fits) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_NONE;
  }
  plan->live.groups.reserve(plan->groups.size());
  plan->live.params.reserve(plan->present.size());
  plan->live.grads.reserve(plan->present.size());
  plan->live.slots.reserve(plan->slots.size());
  size_t states = 0;
  for (const auto& bucket : plan->buckets) states += bucket->size() * bucket->names.size();
  plan->live.states.reserve(states);
  plan->ready.resize(plan->buckets.size());
  plan->squares.resize(plan->buckets.size() + plan->scopes);
  for (size_t b = 0; b < plan->buckets.size(); ++b) plan->jobs.push_back({&plan->buckets[b]->table, &plan->ready[b].scalars});
  return PyCapsule_New(plan.release(), kPlanName, free_plan);
}

}  // namespace ingot
