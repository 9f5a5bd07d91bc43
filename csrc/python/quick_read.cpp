// What the quick path reads again in every step: groups, options, parameters, states, gradients, layouts and addresses.
#include <algorithm>
#include <cmath>

#include "quick.h"
#include "tensors.h"

namespace ingot {
namespace {

// The same groups with the same parameters and options. A learning rate may differ: schedules change it in every step.
bool read_groups(Plan& plan, PyObject* attributes, Live& live) {
  PyObject* groups = find(attributes, names().param_groups);
  if (groups == nullptr || groups != plan.param_groups || !PyList_CheckExact(groups)) return false;
  if (PyList_Size(groups) != static_cast<Py_ssize_t>(plan.groups.size())) return false;
  live.groups.reserve(plan.groups.size());
  live.params.reserve(plan.present.size());
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    RememberedGroup& group = plan.groups[g];
    PyObject* dictionary = PyList_GetItem(groups, g);
    if (dictionary != group.dictionary) return false;
    PyObject* params = find(dictionary, names().params);
    const Py_ssize_t count = static_cast<Py_ssize_t>(group.params.size());
    if (params == nullptr || !PyList_CheckExact(params) || PyList_Size(params) != count) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* param = PyList_GetItem(params, i);
      if (param != group.params[i]) return false;
      live.params.push_back(param);
    }
    if (PyDict_Size(dictionary) != static_cast<Py_ssize_t>(group.options.size()) + 1) return false;
    for (auto& [key, old] : group.options) {
      PyObject* value = find(dictionary, key.get());
      if (value == old.get()) continue;
      if (value == nullptr || !PyFloat_CheckExact(value) || !PyFloat_CheckExact(old.get())) return false;
      if (PyUnicode_Compare(key.get(), names().lr) != 0) return false;
      const double rate = PyFloat_AsDouble(value);
      if (!(rate >= 0) || std::isinf(rate)) return false;
      old = Owned::share(value);
    }
    live.groups.push_back(dictionary);
  }
  return true;
}

bool read_state(const Plan& plan, PyObject* attributes, Live& live) {
  PyObject* state = find(attributes, names().state);
  if (state == nullptr || state != plan.state || PyDict_Size(state) != static_cast<Py_ssize_t>(plan.slots.size())) return false;
  live.slots.reserve(plan.slots.size());
  PyObject *key, *value;
  size_t i = 0;
  for (Py_ssize_t at = 0; PyDict_Next(state, &at, &key, &value); ++i) {
    if (key != plan.owners[i] || value != plan.slots[i] || !PyDict_CheckExact(value)) return false;
    live.slots.push_back(value);
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
bool are_as_guarded(const Plan& plan, const Live& live, Py_ssize_t count) {
  if (!plan.guard) return false;
  const Owned all(PyTuple_New(count));
  Py_ssize_t i = 0;
  for (const Owned& grad : live.grads) {
    if (all && grad && grad.get() != Py_None) PyTuple_SetItem(all.get(), i++, Py_NewRef(grad.get()));
  }
  const Owned answer(all ? PyObject_Call(plan.guard.get(), all.get(), nullptr) : nullptr);
  PyErr_Clear();
  return answer.get() == Py_True;
}

// Whether all gradients are plain tensors, and none a lazily negated view. Asked before any address is read: torch lets other
// threads run meanwhile.
bool are_plain(const Plan& plan, const Live& live, Py_ssize_t count) {
  return are_as_guarded(plan, live, count) || std::all_of(live.grads.begin(), live.grads.end(), [](const Owned& grad) {
           return !grad || grad.get() == Py_None || is_positive_plain(grad.get());
         });
}

// Gradients of the same parameters as last time.
bool read_gradients(const Plan& plan, Live& live) {
  if (plan.present.size() != live.params.size()) return false;
  live.grads.reserve(live.params.size());
  Py_ssize_t count = 0;
  for (size_t i = 0; i < live.params.size(); ++i) {
    if (plan.present[i] == Gradient::kNotAsked) {
      live.grads.emplace_back();
      continue;
    }
    Owned grad(PyObject_GetAttr(live.params[i], names().grad));
    if (!grad || (grad.get() != Py_None) != (plan.present[i] == Gradient::kPresent)) return false;
    count += grad.get() != Py_None;
    live.grads.push_back(std::move(grad));
  }
  return are_plain(plan, live, count);
}

// Replaces the address of one operand, if all else about the tensor is as it was; `known` moves on to the next operand. `elsewhere`
// says whether its address was another.
bool read_operand(PyObject* object, const int64_t*& known, void** data, bool* elsewhere) {
  DLTensor t;
  if (object == nullptr || !describe_quickly(object, &t)) return false;
  if (t.device.device_type != kDLCPU || t.strides == nullptr) return false;
  if (known[0] != (t.dtype.code << 8 | t.dtype.bits) || known[1] != t.ndim || t.dtype.lanes != 1) return false;
  const int64_t bytes = known[2];
  known += 3;
  int64_t different = 0;
  for (int d = 0; d < t.ndim; ++d) different |= (t.shape[d] ^ known[d]) | (t.strides[d] ^ known[t.ndim + d]);
  known += 2 * t.ndim;
  void* const address = static_cast<char*>(t.data) + t.byte_offset;
  *elsewhere = address != *data;
  *data = address;
  const bool aligned = (reinterpret_cast<uintptr_t>(address) & (t.dtype.bits / 8 - 1)) == 0;  // a power of two
  return different == 0 && aligned && (t.data != nullptr || bytes == 0);
}

// The addresses of all operands of a bucket; those that are written and were found elsewhere are added to `moved`.
bool read_operands(RememberedBucket& bucket, const Live& live, Plan& plan, std::vector<Owned>& moved) {
  const int operands = operand_count(bucket.table);
  int numbers[kOperands];
  PyObject* entries[kOperands];
  for (int k = 0; k < operands; ++k) {
    numbers[k] = operand_number(bucket.table, k);
    entries[k] = k < 2 ? nullptr : PyTuple_GetItem(bucket.entries.get(), k - 2);
  }
  const int64_t* known = bucket.layout.data();
  for (int64_t i = 0; i < bucket.size(); ++i) {
    const int64_t ordinal = bucket.ordinals[i];
    Tensor& tensor = bucket.table.tensors[i];
    for (int k = 0; k < operands; ++k) {
      PyObject* object = k == 0   ? live.params[ordinal]
                         : k == 1 ? live.grads[ordinal].get()
                                  : find(live.slots[bucket.positions[i]], entries[k]);
      bool elsewhere = false;
      if (!read_operand(object, known, &tensor.data[numbers[k]], &elsewhere)) return false;
      if (!elsewhere) continue;
      (k == 1 ? plan.read_moved : plan.written_moved) = true;
      if (k != 1) moved.push_back(Owned::share(object));
    }
  }
  return true;
}

// Calls visit(operand, extent) for every operand of every tensor that has elements.
template <class Visit>
void for_extents(const Plan& plan, Visit visit) {
  for (const auto& bucket : plan.buckets) {
    const int64_t* known = bucket->layout.data();
    for (const Tensor& tensor : bucket->table.tensors) {
      for (int k = 0; k < operand_count(bucket->table); ++k) {
        const int operand = operand_number(bucket->table, k);
        const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data[operand]);
        if (known[2] > 0) visit(operand, std::make_pair(begin, begin + known[2]));
        known += 3 + 2 * known[1];
      }
    }
  }
}

// Whether what is written shares memory with anything. Parameters and states mostly stay where they are: only if one has moved
// are they sorted again, and only if one or a gradient has moved are gradients compared with them.
bool overlaps(Plan& plan) {
  if (plan.written_moved) {
    plan.written.clear();
    for_extents(plan, [&](int operand, const auto& extent) {
      if (operand != kGrad) plan.written.push_back(extent);
    });
    std::sort(plan.written.begin(), plan.written.end());
    const auto touch = [](const auto& a, const auto& b) { return b.first < a.second; };
    if (std::adjacent_find(plan.written.begin(), plan.written.end(), touch) != plan.written.end()) return true;
  }
  bool found = false;
  if (plan.written_moved || plan.read_moved) {
    for_extents(plan, [&](int operand, const auto& extent) {
      if (operand != kGrad || found) return;
      const auto after = std::lower_bound(plan.written.begin(), plan.written.end(), extent.second,
                                          [](const auto& written, uintptr_t end) { return written.first < end; });
      found = after != plan.written.begin() && (after - 1)->second > extent.first;
    });
  }
  if (!found) plan.written_moved = plan.read_moved = false;
  return found;
}

}  // namespace

PyObject* find(PyObject* dictionary, PyObject* key) { return PyDict_GetItemWithError(dictionary, key); }

bool read_objects(Plan& plan, PyObject* attributes, Live& live) {
  return same_settings(plan, attributes) && read_groups(plan, attributes, live) && read_state(plan, attributes, live) &&
         read_gradients(plan, live);
}

bool read_count(const RememberedBucket& bucket, const Live& live, int64_t* done) {
  const bool needed = bucket.counted || operand_count(bucket.table) > 2;
  PyObject* first = nullptr;
  for (const int64_t position : bucket.positions) {
    if (needed && position < 0) return false;
    if (!bucket.counted) continue;
    PyObject* count = find(live.slots[position], names().step);
    if (count == nullptr || !PyLong_CheckExact(count)) return false;
    if (first == nullptr) first = count;
    if (count != first && PyObject_RichCompareBool(count, first, Py_EQ) != 1) return false;
  }
  *done = first == nullptr ? 1 : PyLong_AsLongLong(first);
  return *done >= 0 && PyErr_Occurred() == nullptr;
}

bool read_addresses(Plan& plan, const Live& live) {
  std::vector<Owned> moved;
  const auto read_all = [&] {
    return std::all_of(plan.buckets.begin(), plan.buckets.end(),
                       [&](const auto& bucket) { return read_operands(*bucket, live, plan, moved); });
  };
  if (!read_all()) return false;
  if (!moved.empty()) {
    // Somebody has replaced them. torch forbids to change an inference tensor, and lets other threads run while it is asked: then
    // all are read again.
    if (std::any_of(moved.begin(), moved.end(), [](const Owned& each) { return is_inference(each.get()); })) return false;
    moved.clear();
    if (!read_all() || !moved.empty()) return false;
  }
  return !overlaps(plan);
}

}  // namespace ingot
