// Python's side of the core: tensors as Python objects, read through torch's DLPack exchange table.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

#include "driver/table.h"

namespace ingot {

// The kernels for this machine, or for the instruction set that the environment variable INGOT_ISA names; null with an
// error set if the machine does not have it.
const Kernels* choose_kernels();
extern const Kernels* kernels;  // what it chose, when the module was loaded

// What torch provides. Only its two plain types are taken: no subclass is known to have ordinary storage.
struct Torch {
  const DLPackExchangeAPI* exchange = nullptr;
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyObject* is_neg = nullptr;        // the method Tensor.is_neg
  PyObject* is_inference = nullptr;  // the method Tensor.is_inference
};
extern Torch torch;

// Describes a plain tensor of real numbers on any device; false if it is something else or a lazily negated view, without an error
// unless asking was interrupted. Dense tensors are asked about their sign only if told to: see may_be_negated.
bool describe_plain(PyObject* object, DLTensor* out, bool ask_sign);
// Describes a plain tensor, complex ones included, without asking about the sign; false, without an error, if it is something else.
bool describe_quickly(PyObject* object, DLTensor* out);
// Whether an object is a plain tensor and no lazily negated view; false with an error set if asking was interrupted.
bool is_positive_plain(PyObject* object);
// Whether a tensor that is laid out like this may be a lazily negated view.
bool may_be_negated(const DLTensor& tensor);
bool is_inference(PyObject* tensor);  // made in torch.inference_mode()

constexpr const char* kTableName = "ingot._native.table";  // of capsules that hold a Table

// Lists of one table, null for operands it does not have; borrowed.
using Lists = PyObject* [kOperands];

// Reads all tensors of the lists; an empty string, or why they cannot be taken. An error is set if reading was interrupted.
std::string fill(Table& table, TableBuilder& builder, const Lists& lists);

// A table of one list of tensors; false with an error set.
bool fill_single(Table& table, PyObject* tensors, Operand operand);

// One list of uint32 keys per operand; false with an error set.
bool read_keys(PyObject* keys, Table& table);

// What scalars() of an optimizer returned, for the variant of a table; false with an error set.
bool read_scalars(const Table& table, PyObject* values, StepScalars* out);

// The memory of a float64 tensor of `count` consecutive elements; null with an error set.
double* doubles(PyObject* object, int64_t count);

}  // namespace ingot
