// The quick path: what the last plan relied on is read again, then the step is made; at a difference nothing has been changed.
#include "quick.h"

#include <algorithm>
#include <cmath>

#include "driver/keys.h"
#include "driver/measure.h"
#include "driver/step.h"
#include "interpreter.h"
#include "tensors.h"

namespace ingot {
namespace {

bool ask_scalars(const RememberedBucket& bucket, const Live& live, int64_t done, Ready& ready) {
  PyObject* group = live.groups[bucket.group].get();
  ready.step = Owned(PyLong_FromLongLong(done + 1));
  const Owned second(PyLong_FromLong(2));
  PyObject* step = bucket.by_count ? ready.step.get() : second.get();
  const Owned values(PyObject_CallFunctionObjArgs(bucket.scalars.get(), group, step, nullptr));
  if (!values || !read_scalars(bucket.table, values.get(), &ready.scalars)) return false;
  PyObject* maximize = find(group, names().maximize);
  ready.scalars.grad_scale = maximize != nullptr && PyObject_IsTrue(maximize) == 1 ? -1.0 : 1.0;
  return PyErr_Occurred() == nullptr;
}

bool make_keys(RememberedBucket& bucket, const Live& live, int64_t step) {
  PyObject* seed = find(live.groups[bucket.group].get(), names().rounding_seed);
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

bool ask_clips(const Plan& plan, const RememberedBucket& bucket, Ready& ready) {
  ready.clips.clear();
  const Owned clips(PyObject_CallFunctionObjArgs(plan.clips.get(), plan.live.groups[bucket.group].get(), nullptr));
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

// Everything the step needs of Python. False, and no tensor or state has been changed, if something is not as it was, or with an
// error set.
bool read_all(Plan& plan, PyObject* attributes) {
  if (!read_objects(plan, attributes)) return false;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    RememberedBucket& bucket = *plan.buckets[b];
    int64_t done = 1;
    if (!read_count(bucket, plan.live, &done) || !ask_scalars(bucket, plan.live, done, plan.ready[b])) return false;
    if (bucket.table.is_stochastic() && !make_keys(bucket, plan.live, done + 1)) return false;
    if (plan.clips && !ask_clips(plan, bucket, plan.ready[b])) return false;
  }
  return read_addresses(plan);
}

// From here until the loops have ended nothing can fail, and no Python code of this thread runs.
void commit(const Plan& plan) {
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    if (!plan.buckets[b]->counted) continue;
    for (const int64_t position : plan.buckets[b]->positions) {
      PyDict_SetItem(plan.live.slots[position].get(), names().step, plan.ready[b].step.get());  // the key is there
    }
  }
}

// Multiplies the clip coefficients into the scales, as ingot.reductions.norms.clip_in_step does; returns the norm of all.
double clip(Plan& plan) {
  sums_of_squares(plan.jobs.data(), plan.jobs.data() + plan.jobs.size(), *kernels, plan.squares.data());
  double* const of_scope = plan.squares.data() + plan.jobs.size();
  std::fill_n(of_scope, plan.scopes, 0.0);
  for (size_t b = 0; b < plan.buckets.size(); ++b) of_scope[plan.buckets[b]->scope] += plan.squares[b];
  double all = 0;
  for (Py_ssize_t scope = 0; scope < plan.scopes; ++scope) all += of_scope[scope];
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    double& scale = plan.ready[b].scalars.grad_scale;
    for (const Clipping& clip : plan.ready[b].clips) {
      const double norm = std::sqrt(clip.over_all ? all : of_scope[plan.buckets[b]->scope]) * std::fabs(scale);
      const double coefficient = clip.max_norm / (norm + clip.slack);
      scale *= coefficient > 1.0 ? 1.0 : coefficient;  // NaN stays NaN
    }
  }
  return std::sqrt(all);
}

// Returns the norm of all gradients before they were clipped, 0 if they are not.
double run_all(Plan& plan) {
  int64_t elements = 0;
  for (const auto& bucket : plan.buckets) elements += bucket->table.elements;
  double norm = 0;
  const auto work = [&] {
    if (plan.clips) norm = clip(plan);
    run_jobs(plan.jobs.data(), plan.jobs.data() + plan.jobs.size(), *kernels);
  };
  // So little work is done sooner than another thread could take over the interpreter lock.
  if (elements < kWorthThreads) work();
  else without_lock(work);
  return norm;
}

// While it is alive, no other step is made with the plan: not by another thread, nor by what a finalizer calls.
class InUse {
 public:
  explicit InUse(Plan& plan) : plan_(plan) { plan_.running = true; }
  ~InUse() {
    Live& live = plan_.live;
    for (auto* objects : {&live.groups, &live.params, &live.slots, &live.grads, &live.states}) objects->clear();
    live.changed = Owned();
    plan_.running = false;
  }
  InUse(const InUse&) = delete;

 private:
  Plan& plan_;
};

}  // namespace

PyObject* quick_step(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "expected a plan and a dict");
    return nullptr;
  }
  auto* plan = static_cast<Plan*>(PyCapsule_GetPointer(arguments[0], kPlanName));
  if (plan == nullptr) return nullptr;
  // What an interrupted reading has left is half of that step and half of this one.
  if (plan->running || plan->broken) Py_RETURN_FALSE;
  const InUse in_use(*plan);
  plan->broken = true;
  if (!read_all(*plan, arguments[1])) {
    if (PyErr_Occurred() != nullptr) return nullptr;
    Py_RETURN_FALSE;
  }
  plan->broken = false;
  commit(*plan);
  const double norm = run_all(*plan);
  // Tells autograd what was changed. States are nobody's but the optimizer's: no graph holds them.
  const Owned told(PyObject_CallFunctionObjArgs(plan->increment_version.get(), plan->live.changed.get(), nullptr));
  if (!told) return nullptr;
  if (plan->clips) return PyFloat_FromDouble(norm);
  Py_RETURN_TRUE;
}

PyObject* forget_gradients(PyObject*, PyObject* groups) {
  std::vector<Owned> params;
  if (!PyList_CheckExact(groups)) Py_RETURN_FALSE;
  for (Py_ssize_t g = 0; g < PyList_Size(groups); ++g) {
    PyObject* group = PyList_GetItem(groups, g);
    PyObject* list = PyDict_Check(group) ? find(group, names().params) : nullptr;
    if (list == nullptr || !PyList_CheckExact(list)) Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) params.push_back(Owned::share(PyList_GetItem(list, i)));
  }
  for (const Owned& param : params) {
    if (PyObject_SetAttr(param.get(), names().grad, Py_None) != 0) return nullptr;
  }
  Py_RETURN_TRUE;
}

}  // namespace ingot
