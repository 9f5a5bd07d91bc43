// The quick path: a step like the last one, checked and run in one call from Python.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "driver/schedule.h"

namespace ingot {

// remember(attributes, increment_version, options, refits, clips, guard, present, parts) -> a plan for quick_step
//   attributes: vars(optimizer)
//   options: for each group the names of the options that decide about a step, and whether one can be changed in place
//   refits: called with the number of a group and the group, if an option is another object or can be changed in place; True if
//     the plan holds
//   clips: called with a group, its clippings; None if no group clips
//   guard: called with all gradients; True if they are plain, none is lazily negated, and more (step/facts.py). Otherwise, or if
//     it is None, each is asked
//   present: whether each parameter has a gradient; None for one that the step is not about
//   parts: a bucket each: (table, lists of tensors, group, scope, ordinals, positions, entries, scalars, by_count, counted, starts);
//     tables are used up
PyObject* remember(PyObject* self, PyObject* arguments);

// quick_step(plan, attributes) -> False: something differs, and nothing was done; True: done; a float: done, and the norm of
// all gradients before they were clipped
PyObject* quick_step(PyObject* self, PyObject* const* arguments, Py_ssize_t count);

// forget_gradients(param_groups): param.grad = None for all; False, and nothing was done, if these are no lists
PyObject* forget_gradients(PyObject* self, PyObject* groups);

constexpr const char* kPlanName = "ingot._native.plan";

// The names of attributes, options and states that are looked up in every step.
struct Names {
  PyObject *param_groups, *state, *backend, *precision, *norm_group, *found_inf, *grad_scale;
  PyObject *params, *grad, *step, *lr, *maximize, *rounding_seed, *all;
};
const Names& names();

// Owns a reference.
class Owned {
 public:
  explicit Owned(PyObject* object = nullptr) : object_(object) {}
  ~Owned() { Py_XDECREF(object_); }
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  static Owned share(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Owned(borrowed);
  }
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

enum class Gradient : uint8_t { kNone, kPresent, kNotAsked };

// A parameter group. Parameters are known by their identity only: nothing here keeps them alive, and an address that is used
// again for another parameter does no harm, because all that matters is read from the live object in every step.
struct RememberedGroup {
  const void* dictionary;
  std::vector<const void*> params;
  std::vector<std::pair<Owned, Owned>> options;  // name and value, of those that decide about a step
  bool changes_in_place;                         // a list or a tensor among them: the plan must be found to hold in every step
};

// A bucket: its table, in which a step replaces the addresses, and the layout of every operand as it was.
struct RememberedBucket {
  Table table;
  Py_ssize_t group;
  Py_ssize_t scope;              // group and type of the parameters: what one norm may be taken over
  bool counted;                  // the step count is kept in the state
  bool by_count;                 // the scalars depend on the step count; if not, they are those of any step but the first
  Owned entries;                 // names in the state of a parameter: its states, then the master copy
  Owned scalars;                 // called with group and step
  std::vector<PyObject*> names;  // the items of `entries`
  std::vector<int64_t> ordinals, positions, starts;
  // Of every operand of every tensor: type, number of dimensions, bytes from the first element to behind the last, shape, strides.
  std::vector<int64_t> layout;
  std::vector<std::pair<int64_t, int>> unsure;  // tensor and operand: may_be_negated, and no gradient

  int64_t size() const { return static_cast<int64_t>(table.tensors.size()); }
};

// One clipping that a group asks for, as ingot.declare.spec.Clip.
struct Clipping {
  double max_norm;
  bool over_all;
  double slack;
};

// What one bucket runs with in this step.
struct Ready {
  StepScalars scalars = {};
  Owned step;  // its number
  std::vector<Clipping> clips;
};

// The Python objects found in this step. They are owned, because Python code and other threads may run before the step is made, and
// other threads while it is. A gradient that was not asked for is null.
struct Live {
  std::vector<Owned> groups, params, slots, grads;
  std::vector<Owned> states;  // and master copies
  Owned changed;              // a list of the parameters that have a gradient
};

struct Plan {
  const void *param_groups, *state;
  Owned backend, precision;
  Owned increment_version;
  Owned refits;
  Owned clips;  // null: no group clips
  Owned guard;  // null: none
  Py_ssize_t scopes = 0;
  std::vector<RememberedGroup> groups;
  std::vector<const void*> owners, slots;  // keys and values of the state
  std::vector<Gradient> present;
  std::vector<std::unique_ptr<RememberedBucket>> buckets;
  // The address ranges of all tensors that are written, sorted, as they were when last found not to overlap; and whether one of
  // these, or a gradient, was found elsewhere since.
  std::vector<std::pair<uintptr_t, uintptr_t>> written;
  bool written_moved = true, read_moved = true;
  // Of the step being made; the memory is kept.
  bool running = false;
  bool broken = false;  // reading it again was begun and not finished
  Live live;
  std::vector<Ready> ready;  // by bucket, as the next two
  std::vector<Job> jobs;
  std::vector<double> squares;
};

// The reading half of a step, in this order, with nothing changed. Each is false at the first difference.
bool read_objects(Plan& plan, PyObject* attributes);
bool read_count(const RememberedBucket& bucket, const Live& live, int64_t* done);  // the steps made so far
// Last, after all calls into Python: other threads may run meanwhile.
bool read_addresses(Plan& plan);

PyObject* find(PyObject* dictionary, PyObject* key);  // borrowed; null if there is none

// The operand of a table under which the k-th of (param, grad, states with all their parts ..., master) is found.
int operand_number(const Table& table, int k);
inline int state_parts(const Table& table) { return table.coded ? 2 : 1; }
inline int operand_count(const Table& table) { return 2 + table.states * state_parts(table) + (table.masters ? 1 : 0); }

}  // namespace ingot
