// Elementwise optimizers: one sweep over every tensor.
#include <algorithm>

#include "step.h"

namespace ingot {
namespace {

void step_elements(Stage& stage, const Table& table, const Variant& variant, const StepScalars& scalars, Span span) {
  const Tensor& tensor = table.tensors[span.tensor];
  const Math& math = variant.math(tensor.wide);
  if (is_plain_bfloat16(table, tensor)) {
    variant.bfloat16.step(stored_block(tensor, span.begin), span.count, scalars);
    return;
  }
  constexpr unsigned kAll = kParamBit | kGradBit | kStateBits;
  const int64_t end = span.begin + span.count;
  const int64_t most = tensor.direct ? span.count : kTile;
  for (; span.begin < end; span.begin += most) {
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
  const Variant& variant = kernels.variants[table.variant];
  share(static_cast<int64_t>(table.tasks.size()), table.elements, [&](int64_t number) {
    const Task& task = table.tasks[number];
    Stage stage(table, kernels);
    for (int64_t i = task.tensor; i < task.last; ++i) {
      const Tensor& tensor = table.tensors[i];
      const int64_t end = task.end > 0 ? task.end : tensor.count();
      step_elements(stage, table, variant, scalars, {i, task.begin, end - task.begin});
    }
  });
}

}  // namespace ingot
