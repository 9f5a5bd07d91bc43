// Running C++ without the interpreter lock.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>

namespace ingot {

// Lets other Python threads run meanwhile.
template <class Work>
void without_lock(Work work) {
  PyThreadState* state = PyEval_SaveThread();
  std::exception_ptr error;
  try {
    work();
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  // Not in a destructor: while Python shuts down, this ends the thread, which must not pass through one.
  PyEval_RestoreThread(state);
  if (error) std::rethrow_exception(error);
}

}  // namespace ingot
