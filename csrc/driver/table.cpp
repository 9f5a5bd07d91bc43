// Building the pointer table: types, shapes, and which operands need a view.
#include "table.h"

#include <algorithm>

namespace ingot {
namespace {

const char* const kNames[kOperands] = {
    "param", "grad", "state 0", "state 1", "state 2", "stored param", "scale of state 0", "scale of state 1", "scale of state 2"};

const char* const kWrongType = "its type is not float32, bfloat16, float16 or float64";

// The operand in whose memory order all operands are gone through: the parameter, or its master copy. Sums are added up in that
// order, so nothing but its shape and strides may decide it. A table of gradients alone has no parameters.
const DLTensor& leader(const DLTensor* const* operands) {
  return operands[kParam] != nullptr ? *operands[kParam] : *operands[kGrad];
}

std::vector<int64_t> row_major_strides(const DLTensor& tensor) {
  std::vector<int64_t> strides(tensor.ndim);
  int64_t expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    strides[d] = expected;
    expected *= tensor.shape[d];
  }
  return strides;
}

std::vector<int64_t> strides_of(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return row_major_strides(tensor);
  return std::vector<int64_t>(tensor.strides, tensor.strides + tensor.ndim);
}

}  // namespace

int64_t element_count(const DLTensor& tensor) {
  int64_t count = 1;
  for (int d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  return count;
}

bool is_row_major(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

std::pair<uintptr_t, uintptr_t> extent_of(const DLTensor& tensor) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  if (element_count(tensor) == 0) return {begin, begin};
  int64_t last = 0;
  int64_t expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    last += (tensor.shape[d] - 1) * (tensor.strides != nullptr ? tensor.strides[d] : expected);
    expected *= tensor.shape[d];
  }
  return {begin, begin + (last + 1) * (tensor.dtype.bits / 8)};
}

const char* check_storage(const DLTensor& tensor, DType* dtype) {
  if (tensor.device.device_type != kDLCPU) return "it is not on the CPU";
  const DLDataType type = tensor.dtype;
  if (type.lanes != 1) return "its type is not supported";
  if (tensor.ndim > kMaxDims) return "it has more than 64 dimensions";
  if (type.code == kDLFloat && type.bits == 32) *dtype = DType::float32;
  else if (type.code == kDLFloat && type.bits == 64) *dtype = DType::float64;
  else if (type.code == kDLFloat && type.bits == 16) *dtype = DType::float16;
  else if (type.code == kDLBfloat && type.bits == 16) *dtype = DType::bfloat16;
  else if (type.code == kDLInt && type.bits == 8) *dtype = DType::signed8;
  else if (type.code == kDLUInt && type.bits == 8) *dtype = DType::unsigned8;
  else return kWrongType;
  // A FakeTensor or wrapper subclass describes itself like any other, but has nothing behind it.
  if (tensor.data == nullptr && element_count(tensor) > 0) return "it has no storage";
  const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  if (address % kItemSize[static_cast<int>(*dtype)] != 0) return "its memory is not aligned";
  return nullptr;
}

std::string TableBuilder::add(const DLTensor* const* operands) {
  Tensor tensor = {};
  tensor.views = -1;
  const DLTensor& param = leader(operands);
  bool row_major = true;
  for (int k = 0; k < kScale; ++k) {
    if (operands[k] == nullptr) continue;
    const DLTensor& operand = *operands[k];
    const char* why = check_storage(operand, &tensor.dtype[k]);
    const bool may_be_code = table_.coded && k >= kState && k < kStored;
    if (why == nullptr && is_code(tensor.dtype[k]) && !may_be_code) why = kWrongType;
    if (why != nullptr) return std::string(kNames[k]) + ": " + why;
    if (operand.ndim != param.ndim || !std::equal(param.shape, param.shape + param.ndim, operand.shape)) {
      return std::string(kNames[k]) + ": its shape is not that of the parameter";
    }
    tensor.data[k] = static_cast<char*>(operand.data) + operand.byte_offset;
    row_major = row_major && is_row_major(operand);
  }
  if (one_type_ && !table_.tensors.empty()) {
    const DType* first = table_.tensors.front().dtype;
    if (!std::equal(first, first + kOperands, tensor.dtype)) return "its types are not those of the first tensor";
  }
  const int64_t count = element_count(param);
  tensor.has_rows = param.ndim - inner_dims_ > 1;
  tensor.rows = rows_ && tensor.has_rows ? param.shape[0] : 1;
  tensor.length = tensor.rows > 0 ? count / tensor.rows : 0;
  tensor.wide = tensor.dtype[operands[kParam] != nullptr ? kParam : kGrad] == DType::float64;
  if (table_.coded) {
    const std::string why = add_codes(tensor, operands);
    if (!why.empty()) return why;
  }
  if (!row_major && count > 0) {
    const std::string why = lay_out(tensor, operands);
    if (!why.empty()) return why;
  }
  if (operands[kStored] != nullptr && kItemSize[static_cast<int>(tensor.dtype[kStored])] != 2) {
    return "stored param: a master copy is for 16-bit parameters";
  }
  const DType math = tensor.wide ? DType::float64 : DType::float32;
  tensor.direct = operands[kStored] == nullptr;
  for (int k = 0; k < kScale; ++k) {
    if (operands[k] == nullptr) continue;
    const bool same = tensor.dtype[k] == math;
    if (!same && k >= kState && tensor.wide != (tensor.dtype[k] == DType::float64)) {
      return std::string(kNames[k]) + ": float64 mixed with other types";
    }
    if (!same && k >= kState && k < kStored && !tensor.coded) table_.rounded_states = true;
    tensor.direct = tensor.direct && same && table_.view(tensor, k) == nullptr;
  }
  tensor.mix = operands[kParam] != nullptr && operands[kGrad] != nullptr ? mix_of(tensor) : -1;
  table_.tensors.push_back(tensor);
  return {};
}

// All states are codes of the sign they are declared with, one after the other, and there is one scale per block.
std::string TableBuilder::add_codes(Tensor& tensor, const DLTensor* const* operands) const {
  const int64_t blocks = (tensor.count() + kBlock - 1) / kBlock;
  for (int k = 0; k < table_.states; ++k) {
    const DLTensor &codes = *operands[kState + k], &scale = *operands[kScale + k];
    const DType wanted = unsigned_states_ >> k & 1u ? DType::unsigned8 : DType::signed8;
    if (tensor.dtype[kState + k] != wanted) return std::string(kNames[kState + k]) + ": its codes are of another type";
    if (blocks > 0 && !is_row_major(codes)) return std::string(kNames[kState + k]) + ": its codes are not in row-major order";
    const char* why = check_storage(scale, &tensor.dtype[kScale + k]);
    if (why == nullptr && tensor.dtype[kScale + k] != DType::float32) why = "its type is not float32";
    if (why == nullptr && (scale.ndim != 1 || !is_row_major(scale) || scale.shape[0] != blocks)) {
      why = "it is not one number per block of 128 elements";
    }
    if (why != nullptr) return std::string(kNames[kScale + k]) + ": " + why;
    tensor.data[kScale + k] = static_cast<char*>(scale.data) + scale.byte_offset;
  }
  tensor.coded = true;
  return tensor.wide ? "states in blocks are not for float64" : "";
}

// Loops of their own are for dense tensors that are not float32 throughout, rounded to nearest, without master copies.
int8_t TableBuilder::mix_of(const Tensor& tensor) const {
  if (tensor.direct || tensor.views >= 0 || table_.is_stochastic() || table_.masters) return -1;
  const auto states_are = [&](DType dtype) {
    return std::all_of(tensor.dtype + kState, tensor.dtype + kState + table_.states, [=](DType d) { return d == dtype; });
  };
#define MATCH_MIX(NUMBER, P, G, S) \
  if (tensor.dtype[kParam] == DType::P && tensor.dtype[kGrad] == DType::G && states_are(DType::S)) return NUMBER;
  INGOT_MIXES(MATCH_MIX)
#undef MATCH_MIX
  return -1;
}

std::string TableBuilder::lay_out(Tensor& tensor, const DLTensor* const* operands) {
  const DLTensor& param = leader(operands);
  const bool rows_first = tensor.rows > 1;
  // Codes are in row-major order, and so are their blocks.
  const std::vector<int64_t> by = tensor.coded ? row_major_strides(param) : strides_of(param);
  const std::vector<int> order = memory_order(param.shape, by.data(), param.ndim, rows_first);
  auto views = std::make_unique<Views>();
  bool consecutive = true;
  for (int k = 0; k < kScale; ++k) {
    if (operands[k] == nullptr) continue;
    View& view = views->operand[k];
    view = make_view(param.shape, strides_of(*operands[k]).data(), order);
    if (k != kGrad && may_overlap(view)) return std::string(kNames[k]) + ": some of its elements share memory";
    consecutive = consecutive && is_consecutive(view);
  }
  if (table_.is_stochastic()) {
    views->index = make_view(param.shape, row_major_strides(param).data(), order);
    consecutive = consecutive && is_consecutive(views->index);
  }
  if (consecutive) return {};
  tensor.views = static_cast<int32_t>(table_.views.size());
  table_.views.push_back(std::move(views));
  return {};
}

}  // namespace ingot
