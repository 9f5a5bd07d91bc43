// What the quick path reads again in every step: groups, options, parameters, states, gradients; see quick_addresses.cpp, too.
#include <algorithm>
#include <cmath>

#include "quick.h"
#include "tensors.h"

namespace ingot {
namespace {

// A learning rate as schedules set it, numbers of numpy included.
bool is_good_rate(PyObject* value) {
  const double rate = PyFloat_Check(value) ? PyFloat_AsDouble(value) : -1.0;
  return rate >= 0 && !std::isinf(rate);
}

// The options of a group that decide about a step. One may be another object now, as schedules make it, if the plan still holds
// then. For a learning rate that was a float and is a good one now, nobody needs to be asked.
bool read_options(Plan& plan, Py_ssize_t number, PyObject* dictionary) {
  RememberedGroup& group = plan.groups[number];
  bool differs = group.changes_in_place;
  for (auto& [name, old] : group.options) {
    PyObject* value = find(dictionary, name.get());
    if (value == old.get()) continue;
    if (value == nullptr) return false;
    const bool rate = PyUnicode_Compare(name.get(), names().lr) == 0 && PyFloat_Check(old.get()) && is_good_rate(value);
    differs |= !rate;
    old = Owned::share(value);
  }
  if (!differs) return true;
  const Owned index(PyLong_FromSsize_t(number));
  const Owned fits(index ? PyObject_CallFunctionObjArgs(plan.refits.get(), index.get(), dictionary, nullptr) : nullptr);
  return fits.get() == Py_True;
}

// The same groups with the same parameters.
bool read_groups(Plan& plan, PyObject* attributes) {
  Live& live = plan.live;
  const Owned list = Owned::share(find(attributes, names().param_groups));
  PyObject* const groups = list.get();
  if (groups == nullptr || groups != plan.param_groups || !PyList_CheckExact(groups)) return false;
  const auto group_count = static_cast<Py_ssize_t>(plan.groups.size());
  for (Py_ssize_t g = 0; g < group_count; ++g) {
    if (PyList_Size(groups) != group_count) return false;
    const RememberedGroup& group = plan.groups[g];
    PyObject* dictionary = PyList_GetItem(groups, g);
    if (dictionary != group.dictionary) return false;
    live.groups.push_back(Owned::share(dictionary));
    PyObject* params = find(dictionary, names().params);
    const Py_ssize_t count = static_cast<Py_ssize_t>(group.params.size());
    if (params == nullptr || !PyList_CheckExact(params) || PyList_Size(params) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* param = PyList_GetItem(params, i);
      if (param != group.params[i]) return false;
      live.params.push_back(Owned::share(param));
    }
    if (!read_options(plan, g, dictionary)) return false;
  }
  return true;
}

bool read_state(Plan& plan, PyObject* attributes) {
  PyObject* state = find(attributes, names().state);
  if (state == nullptr || state != plan.state || PyDict_Size(state) != static_cast<Py_ssize_t>(plan.slots.size())) return false;
  PyObject *key, *value;
  size_t i = 0;
  for (Py_ssize_t at = 0; PyDict_Next(state, &at, &key, &value); ++i) {
    if (key != plan.owners[i] || value != plan.slots[i] || !PyDict_CheckExact(value)) return false;
    plan.live.slots.push_back(Owned::share(value));
  }
  return true;
}

bool same_settings(const Plan& plan, PyObject* attributes) {
  if (find(attributes, names().found_inf) != nullptr || find(attributes, names().grad_scale) != nullptr) return false;
  PyObject* norm_group = find(attributes, names().norm_group);
  if (norm_group != nullptr && norm_group != Py_None) return false;
  return find(attributes, names().backend) == plan.backend.get() && find(attributes, names().precision) == plan.precision.get();
}

// Whether the guard finds all gradients as they were. If not, a gradient may differ in what does not matter here, as requires_grad,
// or the thread may be in another mode, as torch.inference_mode().
bool are_as_guarded(const Plan& plan, Py_ssize_t count) {
  if (!plan.guard) return false;
  const Owned all(PyTuple_New(count));
  Py_ssize_t i = 0;
  for (const Owned& grad : plan.live.grads) {
    if (all && grad && grad.get() != Py_None) PyTuple_SetItem(all.get(), i++, Py_NewRef(grad.get()));
  }
  const Owned answer(all ? PyObject_Call(plan.guard.get(), all.get(), nullptr) : nullptr);
  if (!answer && PyErr_ExceptionMatches(PyExc_Exception) != 0) PyErr_Clear();
  return answer.get() == Py_True;
}

// Whether all gradients are plain tensors, and none a lazily negated view. Asked before any address is read: torch lets other
// threads run meanwhile.
bool are_plain(const Plan& plan, Py_ssize_t count) {
  const auto is_good = [](const Owned& grad) { return !grad || grad.get() == Py_None || is_positive_plain(grad.get()); };
  if (are_as_guarded(plan, count)) return true;
  return PyErr_Occurred() == nullptr && std::all_of(plan.live.grads.begin(), plan.live.grads.end(), is_good);
}

// The list that increment_version takes: of one group, all of whose parameters have gradients, that of the group.
bool list_changed(Plan& plan, Py_ssize_t count) {
  Live& live = plan.live;
  if (live.groups.size() == 1 && count == static_cast<Py_ssize_t>(live.params.size())) {
    live.changed = Owned::share(find(live.groups[0].get(), names().params));
    return static_cast<bool>(live.changed);
  }
  live.changed = Owned(PyList_New(count));
  Py_ssize_t at = 0;
  for (size_t i = 0; live.changed && i < live.params.size(); ++i) {
    if (plan.present[i] == Gradient::kPresent) PyList_SetItem(live.changed.get(), at++, Py_NewRef(live.params[i].get()));
  }
  return static_cast<bool>(live.changed);
}

// Gradients of the same parameters as last time.
bool read_gradients(Plan& plan) {
  Live& live = plan.live;
  if (plan.present.size() != live.params.size()) return false;
  Py_ssize_t count = 0;
  for (size_t i = 0; i < live.params.size(); ++i) {
    if (plan.present[i] == Gradient::kNotAsked) {
      live.grads.emplace_back();
      continue;
    }
    Owned grad(PyObject_GetAttr(live.params[i].get(), names().grad));
    if (!grad || (grad.get() != Py_None) != (plan.present[i] == Gradient::kPresent)) return false;
    count += grad.get() != Py_None;
    live.grads.push_back(std::move(grad));
  }
  return are_plain(plan, count) && list_changed(plan, count);
}

}  // namespace

PyObject* find(PyObject* dictionary, PyObject* key) { return PyDict_GetItemWithError(dictionary, key); }

bool read_objects(Plan& plan, PyObject* attributes) {
  return same_settings(plan, attributes) && read_groups(plan, attributes) && read_state(plan, attributes) && read_gradients(plan);
}

bool read_count(const RememberedBucket& bucket, const Live& live, int64_t* done) {
  const bool needed = bucket.counted || operand_count(bucket.table) > 2;
  PyObject* first = nullptr;
  for (const int64_t position : bucket.positions) {
    if (needed && position < 0) return false;
    if (!bucket.counted) continue;
    PyObject* count = find(live.slots[position].get(), names().step);
    if (count == nullptr || !PyLong_CheckExact(count)) return false;
    if (first == nullptr) first = count;
    if (count != first && PyObject_RichCompareBool(count, first, Py_EQ) != 1) return false;
  }
  *done = first == nullptr ? 1 : PyLong_AsLongLong(first);
  if (PyErr_Occurred() == nullptr) return *done >= 0;
  PyErr_Clear();  // beyond 64 bits: the whole path counts on
  return false;
}

}  // namespace ingot
