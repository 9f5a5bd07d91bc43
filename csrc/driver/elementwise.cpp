// Elementwise optimizers: one sweep over every tensor.
#include <algorithm>

#include "step.h"

namespace ingot {
namespace {

// The whole blocks of states in codes, where there is a loop for them; `span` is left with the rest. Parameters and gradients
// that are not float32 in one piece pass through the stage.
void step_blocks(Stage& stage, const Table& table, const Kernels& kernels, const StepScalars& scalars, Span& span) {
  const Tensor& tensor = table.tensors[span.tensor];
  const Math::Advance step = kernels.sweep_mixes != nullptr ? kernels.sweep_mixes[table.variant].step_blocks : nullptr;
  if (step == nullptr || !table.keys[0].empty()) return;
  const bool in_place =
      tensor.views < 0 && !table.masters && tensor.dtype[kParam] == DType::float32 && tensor.dtype[kGrad] == DType::float32;
  int64_t whole = span.count / kBlock * kBlock;
  const int64_t most = in_place ? whole : kTile;
  const int64_t rest = span.count - whole;
  for (; whole > 0; whole -= span.count, span.begin += span.count) {
    span.count = std::min(most, whole);
    stage.load(span, kParamBit | kGradBit);
    Block block = stored_block(tensor, span.begin);
    block.param = stage.block().param;
    block.grad = stage.block().grad;
    step(block, span.count, scalars);
    stage.store(span, kParamBit);
  }
  span.count = rest;
}

void step_elements(Stage& stage, const Table& table, const Kernels& kernels, const StepScalars& scalars, Span span) {
  const Tensor& tensor = table.tensors[span.tensor];
  const Variant& variant = kernels.variants[table.variant];
  const Math& math = variant.math(tensor.wide);
  if (tensor.mix >= 0 && kernels.sweep_mixes != nullptr) {
    kernels.sweep_mixes[table.variant].step[tensor.mix](stored_block(tensor, span.begin), span.count / kLanes * kLanes, scalars);
    span.begin += span.count / kLanes * kLanes;  // the rest is staged
    span.count %= kLanes;
  }
  if (tensor.coded) step_blocks(stage, table, kernels, scalars, span);
  constexpr unsigned kAll = kParamBit | kGradBit | kStateBits;
  const int64_t end = span.begin + span.count;
  const int64_t most = tensor.direct ? span.count : kTile;
  for (; span.begin < end; span.begin += span.count) {
    span.count = std::min(most, end - span.begin);
    stage.load(span, kAll);
    if (table.rounded_states && !variant.looks_back) {
      math.advance(stage.block(), span.count, scalars);
      stage.store_and_reload_states(span);
      math.update(stage.block(), span.count, scalars);
      stage.store(span, kParamBit);
    } else {
      math.step(stage.block(), span.count, scalars);
      stage.store(span, kParamBit | kStateBits);
    }
  }
}

}  // namespace

void run_elementwise(const Table& table, const Kernels& kernels, const StepScalars& scalars) {
  share(static_cast<int64_t>(table.tasks.size()), table.elements, [&](int64_t number) {
    const Task& task = table.tasks[number];
    Stage stage(table, kernels);
    for (int64_t i = task.tensor; i < task.last; ++i) {
      const Tensor& tensor = table.tensors[i];
      const int64_t end = task.end > 0 ? task.end : tensor.count();
      step_elements(stage, table, kernels, scalars, {i, task.begin, end - task.begin});
    }
  });
}

}  // namespace ingot
