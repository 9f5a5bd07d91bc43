// What a remembered plan asks of Python lists and dictionaries in every step, without a Python loop.
#pragma once

#include "tensors.h"

namespace ingot {

// identical(one, two) -> whether two lists hold the very same objects in the same order
PyObject* identical(PyObject*, PyObject* arguments);

// gather(params, slots, names, counted) -> (step, grads, states), or None where a plan cannot go on as it was: a
// parameter without a gradient, a state that is missing, step counts that differ (counted; else the step is 0)
PyObject* gather(PyObject*, PyObject* arguments);

}  // namespace ingot
