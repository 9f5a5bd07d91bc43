// The part of DLPack 1.3 that is used here: a tensor's description, and the table of C functions torch hands out.
// Field order and types are fixed by the specification, https://dmlc.github.io/dlpack/latest/c_api.html.
#pragma once

#include <cstdint>

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
constexpr int32_t kDLCPU = 1;

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
constexpr uint8_t kDLInt = 0;
constexpr uint8_t kDLUInt = 1;
constexpr uint8_t kDLFloat = 2;
constexpr uint8_t kDLBfloat = 4;

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null for a compact row-major tensor
  uint64_t byte_offset;
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLPackExchangeAPI {
  DLPackVersion version;
  DLPackExchangeAPI* previous;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  // Describes a tensor without taking a reference: valid as long as the caller keeps the tensor unchanged.
  int (*dltensor_from_py_object_no_sync)(void* py_object, DLTensor* out);
  void* current_work_stream;
};
