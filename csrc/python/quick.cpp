// The quick path: what the last plan relied on is read again, then the step is made; at a difference nothing has been changed.
#include "quick.h"

#include <algorithm>
#include <cmath>

#include "driver/keys.h"
#include "driver/measure.h"
#include "driver/schedule.h"
#include "driver/step.h"
#include "interpreter.h"
#include "tensors.h"

namespace ingot {
namespace {

// One clipping that a group asks for, as ingot.declare.spec.Clip.
struct Clipping {
  double max_norm;
  bool over_all;
  double slack;
};

// What one bucket runs with.
struct Ready {
  StepScalars scalars = {};
  Owned step;  // its number
  std::vector<Clipping> clips;
};

bool read_scalars(const RememberedBucket& bucket, const Live& live, int64_t done, Ready& ready) {
  PyObject* group = live.groups[bucket.group];
  ready.step = Owned(PyLong_FromLongLong(done + 1));
  const Owned second(PyLong_FromLong(2));
  PyObject* step = bucket.by_count ? ready.step.get() : second.get();
  const Owned values(PyObject_CallFunctionObjArgs(bucket.scalars.get(), group, step, nullptr));
  const int count = kernels->variants[bucket.table.variant].scalars;
  if (!values || !PyTuple_Check(values.get()) || PyTuple_Size(values.get()) != count) return false;
  for (int k = 0; k < count; ++k) {
    ready.scalars.wide[k] = PyFloat_AsDouble(PyTuple_GetItem(values.get(), k));
    ready.scalars.narrow[k] = static_cast<float>(ready.scalars.wide[k]);
  }
  PyObject* maximize = find(group, names().maximize);
  ready.scalars.grad_scale = maximize != nullptr && PyObject_IsTrue(maximize) == 1 ? -1.0 : 1.0;
  return PyErr_Occurred() == nullptr;
}

bool read_keys(RememberedBucket& bucket, const Live& live, int64_t step) {
  PyObject* seed = find(live.groups[bucket.group], names().rounding_seed);
  const uint64_t number = seed != nullptr && PyLong_Check(seed) ? PyLong_AsUnsignedLongLong(seed) : 0;
  if (seed == nullptr || PyErr_Occurred() != nullptr) return false;
  const uint32_t base = step_key(number, static_cast<uint64_t>(step));
  for (int k = 0; k < 1 + bucket.table.states; ++k) {
    for (int64_t i = 0; i < bucket.size(); ++i) {
      bucket.table.keys[k][i] = operand_key(base, bucket.ordinals[i], k, bucket.starts[i]);
    }
  }
  return true;
}

bool read_clips(const Plan& plan, const RememberedBucket& bucket, const Live& live, Ready& ready) {
  const Owned clips(PyObject_CallFunctionObjArgs(plan.clips.get(), live.groups[bucket.group], nullptr));
  if (!clips || !PyTuple_Check(clips.get())) return false;
  for (Py_ssize_t c = 0; c < PyTuple_Size(clips.get()); ++c) {
    Clipping clip;
    PyObject *scope, *option;
    PyObject* fields = PyTuple_GetItem(clips.get(), c);
    if (!PyArg_ParseTuple(fields, "dUdU", &clip.max_norm, &scope, &clip.slack, &option)) return false;
    clip.over_all = PyUnicode_Compare(scope, names().all) == 0;
    ready.clips.push_back(clip);
  }
  return true;
}

// Multiplies the clip coefficients into the scales, as ingot.reductions.norms.clip_in_step does; returns the norm of all.
double clip(const Plan& plan, std::vector<Ready>& ready) {
  std::vector<double> squares(plan.scopes);
  without_lock([&] {
    for (const auto& bucket : plan.buckets) squares[bucket->scope] += sum_of_squares(bucket->table, *kernels);
  });
  double all = 0;
  for (const double value : squares) all += value;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    double& scale = ready[b].scalars.grad_scale;
    for (const Clipping& clip : ready[b].clips) {
      const double norm = std::sqrt(clip.over_all ? all : squares[plan.buckets[b]->scope]) * std::fabs(scale);
      const double coefficient = clip.max_norm / (norm + clip.slack);
      scale *= coefficient > 1.0 ? 1.0 : coefficient;  // NaN stays NaN
    }
  }
  return std::sqrt(all);
}

// Everything the step needs of Python; false, and nothing has been changed, if something is not as it was.
bool read_all(Plan& plan, PyObject* attributes, Live& live, std::vector<Ready>& ready) {
  if (!read_objects(plan, attributes, live)) return false;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    RememberedBucket& bucket = *plan.buckets[b];
    int64_t done = 1;
    if (!read_count(bucket, live, &done) || !read_scalars(bucket, live, done, ready[b])) return false;
    if (!bucket.table.keys[0].empty() && !read_keys(bucket, live, done + 1)) return false;
    if (plan.clips && !read_clips(plan, bucket, live, ready[b])) return false;
  }
  return read_addresses(plan, live);
}

void commit(const Plan& plan, const Live& live, const std::vector<Ready>& ready) {
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    if (!plan.buckets[b]->counted) continue;
    for (const int64_t position : plan.buckets[b]->positions) {
      PyDict_SetItem(live.slots[position], names().step, ready[b].step.get());  // the key is there: nothing is allocated
    }
  }
}

void run_all(const Plan& plan, const std::vector<Ready>& ready) {
  int64_t elements = 0;
  for (const auto& bucket : plan.buckets) elements += bucket->table.elements;
  const auto work = [&] {
    for (size_t b = 0; b < plan.buckets.size(); ++b) run_table(plan.buckets[b]->table, *kernels, ready[b].scalars);
  };
  // So little work is done sooner than another thread could take over the interpreter lock.
  if (elements < kWorthThreads) work();
  else without_lock(work);
}

// Tells autograd what was changed. States are nobody's but the optimizer's: no graph holds them.
bool count_versions(const Plan& plan, const Live& live) {
  const auto is_changed = [](Gradient gradient) { return gradient == Gradient::kPresent; };
  Owned changed;
  if (live.groups.size() == 1 && std::all_of(plan.present.begin(), plan.present.end(), is_changed)) {
    changed = Owned::share(find(live.groups[0], names().params));
  } else {
    changed = Owned(PyList_New(0));
    for (size_t i = 0; changed && i < live.params.size(); ++i) {
      if (is_changed(plan.present[i]) && PyList_Append(changed.get(), live.params[i]) != 0) return false;
    }
  }
  return changed && Owned(PyObject_CallFunctionObjArgs(plan.increment_version.get(), changed.get(), nullptr));
}

}  // namespace

PyObject* quick_step(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "expected a plan and a dict");
    return nullptr;
  }
  PyObject* attributes = arguments[1];
  auto* plan = static_cast<Plan*>(PyCapsule_GetPointer(arguments[0], kPlanName));
  if (plan == nullptr) return nullptr;
  Live live;
  std::vector<Ready> ready(plan->buckets.size());
  if (!read_all(*plan, attributes, live, ready)) {
    PyErr_Clear();  // the whole path, which is taken next, will meet the same error and report it
    Py_RETURN_FALSE;
  }
  const double norm = plan->clips ? clip(*plan, ready) : 0.0;
  commit(*plan, live, ready);
  run_all(*plan, ready);
  if (!count_versions(*plan, live)) return nullptr;
  if (plan->clips) return PyFloat_FromDouble(norm);
  Py_RETURN_TRUE;
}

PyObject* forget_gradients(PyObject*, PyObject* groups) {
  for (Py_ssize_t g = 0; PyList_Check(groups) && g < PyList_Size(groups); ++g) {
    PyObject* group = PyList_GetItem(groups, g);
    PyObject* params = PyDict_Check(group) ? find(group, names().params) : nullptr;
    for (Py_ssize_t i = 0; params != nullptr && i < PyList_Size(params); ++i) {
      if (PyObject_SetAttr(PyList_GetItem(params, i), names().grad, Py_None) != 0) return nullptr;
    }
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace ingot
