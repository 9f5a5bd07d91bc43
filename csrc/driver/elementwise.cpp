// Elementwise optimizers: one sweep over every tensor.
#include <algorithm>

#include "step.h"

namespace ingot {
namespace {

// The whole blocks of states in codes, where there is a loop for them; `span` is left with the rest. Parameters and gradients
// that are not float32 in one piece pass through the stage.
void step_blocks(Stage& stage, const Table& table, const Kernels& kernels, const StepScalars& scalars, Span& span) {
  const Tensor& tensor = table.tensors[span.tensor];
  const SweepMixes* mixes = kernels.mixes_of(table.variant);
  const Math::Advance step = mixes != nullptr ? mixes->step_blocks : nullptr;
  if (step == nullptr || table.is_stochastic()) return;
  int64_t whole = span.count / kBlock * kBlock;
  const int64_t most = table.only_codes(tensor) ? whole : kTile;
  const int64_t rest = span.count - whole;
  for (; whole > 0; whole -= span.count, span.begin += span.count) {
    span.count = std::min(most, whole);
    step(stage.load_beside_codes(span, kParamBit | kGradBit), span.count, scalars);
    stage.store(span, kParamBit);
  }
  span.count = rest;
}

void step_elements(Stage& stage, const Table& table, const Kernels& kernels, const StepScalars& scalars, Span span) {
  const Tensor& tensor = table.tensors[span.tensor];
  const Variant& variant = kernels.variants[table.variant];
  const Math& math = variant.math(tensor.wide);
  if (tensor.direct) return math.step(stored_slice(tensor, span.begin), span.count, scalars);
  const SweepMixes* mixes = tensor.mix >= 0 ? kernels.mixes_of(table.variant) : nullptr;
  if (const Math::Advance step = mixes != nullptr ? mixes->step[tensor.mix] : nullptr) {
    step(stored_slice(tensor, span.begin), span.count / kLanes * kLanes, scalars);
    span.begin += span.count / kLanes * kLanes;  // the rest is staged
    span.count %= kLanes;
  }
  if (tensor.coded) step_blocks(stage, table, kernels, scalars, span);
  constexpr unsigned kAll = kParamBit | kGradBit | kStateBits;
  const int64_t end = span.begin + span.count;
  for (; span.begin < end; span.begin += span.count) {
    span.count = std::min(kTile, end - span.begin);
    stage.load(span, kAll);
    if (table.rounded_states && !variant.looks_back) {
      math.advance(stage.slice(), span.count, scalars);
      stage.store_and_reload_states(span);
      math.update(stage.slice(), span.count, scalars);
      stage.store(span, kParamBit);
    } else {
      math.step(stage.slice(), span.count, scalars);
      stage.store(span, kParamBit | kStateBits);
    }
  }
}

}  // namespace

void run_elementwise(const Job* begin, const Job* end, const Kernels& kernels) {
  share_jobs(begin, end, [&](const Job& job, int64_t number) {
    const Table& table = *job.table;
    const Task& task = table.tasks[number];
    Stage stage(table, kernels);
    for (int64_t i = task.tensor; i < task.last; ++i) {
      const Tensor& tensor = table.tensors[i];
      const int64_t last = task.end > 0 ? task.end : tensor.count();
      step_elements(stage, table, kernels, *job.scalars, {i, task.begin, last - task.begin});
    }
  });
}

}  // namespace ingot
