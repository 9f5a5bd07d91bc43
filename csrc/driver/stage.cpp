// Staging of tiles; what is float32 (float64) and consecutive never passes through here.
#include "stage.h"

namespace ingot {
namespace {

int index_of(DType dtype) { return static_cast<int>(dtype); }

char* address(const Tensor& tensor, int operand, int64_t element) {
  return static_cast<char*>(tensor.data[operand]) + element * kItemSize[index_of(tensor.dtype[operand])];
}

float* scales_of(const Tensor& tensor, int state) { return static_cast<float*>(tensor.data[kScale + state - kState]); }

}  // namespace

Slice stored_slice(const Tensor& tensor, int64_t begin) {
  Slice slice = {address(tensor, kParam, begin), address(tensor, kGrad, begin), {}, nullptr, {}};
  for (int k = 0; k < kMaxStates; ++k) {
    if (tensor.data[kState + k] != nullptr) slice.state[k] = address(tensor, kState + k, begin);
    if (tensor.coded) slice.scales[k] = scales_of(tensor, kState + k) + begin / kBlock;
  }
  return slice;
}

void Stage::point(int operand, void* values) {
  if (operand == kParam) slice_.param = values;
  else if (operand == kGrad) slice_.grad = values;
  else slice_.state[operand - kState] = values;
}

void* Stage::pointer(int operand) const { return operand == kParam ? slice_.param : slice_.state[operand - kState]; }

// The stored elements, consecutive: where they are, or a copy.
const void* Stage::packed(const Span& span, int operand) {
  const Tensor& tensor = table_.tensors[span.tensor];
  const View* view = table_.view(tensor, operand);
  if (view == nullptr) return address(tensor, operand, span.begin);
  gather(tensor.data[operand], *view, kItemSize[index_of(tensor.dtype[operand])], span.begin, span.count, packed_.bytes);
  return packed_.bytes;
}

void* Stage::bring_in(const Span& span, int operand) {
  const Tensor& tensor = table_.tensors[span.tensor];
  const bool same_type = tensor.dtype[operand] == (tensor.wide ? DType::float64 : DType::float32);
  if (same_type && table_.view(tensor, operand) == nullptr) return address(tensor, operand, span.begin);
  void* values = values_[operand].bytes;
  if (is_code(tensor.dtype[operand])) {
    kernels_.codec[index_of(tensor.dtype[operand])].decode(tensor.data[operand], scales_of(tensor, operand), span.begin,
                                                           span.count, static_cast<float*>(values));
    return values;
  }
  kernels_.load[tensor.wide][index_of(tensor.dtype[operand])](packed(span, operand), values, span.count);
  return values;
}

void Stage::load(const Span& span, unsigned operands) {
  for (int k = 0; k < kState + table_.states; ++k) {
    if (operands & bit(k)) point(k, bring_in(span, k));
  }
  if (table_.masters && (operands & kParamBit)) {
    const DType stored = table_.tensors[span.tensor].dtype[kStored];
    kernels_.adopt[index_of(stored)](slice_.param, packed(span, kStored), span.count);
  }
}

Slice Stage::load_beside_codes(const Span& span, unsigned operands) {
  load(span, operands & ~kStateBits);
  Slice slice = stored_slice(table_.tensors[span.tensor], span.begin);
  slice.param = slice_.param;
  slice.grad = slice_.grad;
  return slice;
}

void Stage::bring_out(const Span& span, int operand, const void* values) {
  const Tensor& tensor = table_.tensors[span.tensor];
  const View* view = table_.view(tensor, operand);
  void* target = view == nullptr ? address(tensor, operand, span.begin) : packed_.bytes;
  if (values == target) return;
  const int dtype = index_of(tensor.dtype[operand]);
  const bool coded = is_code(tensor.dtype[operand]), keyed = operand != kStored && table_.is_stochastic();
  const bool noisy = keyed && kernels_.store_noisy[dtype] != nullptr;
  Noise noise = {keyed ? table_.keys[operand == kParam ? 0 : operand - kState + 1][span.tensor] : 0, span.begin, nullptr};
  if (coded) {
    kernels_.codec[dtype].encode(static_cast<const float*>(values), span.begin, span.count, tensor.data[operand],
                                 scales_of(tensor, operand), keyed ? &noise : nullptr);
  } else if (noisy) {
    const Views* views = tensor.views < 0 ? nullptr : table_.views[tensor.views].get();
    if (views != nullptr && !is_consecutive(views->index)) {
      list_offsets(views->index, span.begin, span.count, indices_);
      noise.indices = indices_;
    }
    kernels_.store_noisy[dtype](values, target, span.count, noise);
  } else {
    kernels_.store[tensor.wide][dtype](values, target, span.count);
  }
  if (view != nullptr) scatter(target, *view, kItemSize[dtype], span.begin, span.count, tensor.data[operand]);
}

void Stage::store(const Span& span, unsigned operands) {
  for (int k = 0; k < kState + table_.states; ++k) {
    if ((operands & bit(k)) && k != kGrad) bring_out(span, k, pointer(k));
  }
  if (table_.masters && (operands & kParamBit)) bring_out(span, kStored, slice_.param);
}

void Stage::store_and_reload_states(const Span& span) {
  store(span, kStateBits);
  load(span, kStateBits);
}

}  // namespace ingot
