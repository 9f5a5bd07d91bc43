// The loops of elementwise optimizers over operands of other types than float, converted on the way, and of all optimizers over
// 8-bit states; compiled once per instruction set: INGOT_MIX_TABLE names the table this compilation fills.
#include <cstdint>
#include <type_traits>

#include "flags.h"
#include "kernels.h"

namespace ingot {
namespace {

#include "elements.h"
#include "dtypes.h"
#include "generated.h"
#include "loop.inc"
#include "reduce.inc"
#include "blocks8.inc"
#include "step_blocks.inc"
#include "two_pass_blocks.inc"
#include "mixed.inc"

template <class O>
void step_mixed(const Slice& slice, int64_t count, const StepScalars& scalars) {
  const O o(slice, scalars);
  const float keep = o.s.keep, rate = o.s.rate;
  for_whole(o, 0, count, [&](int64_t i) { o.template apply<true>(i, keep, rate); });
}

// Optimizers with a momentum and at most one state more: SGD, Adam, AdamW, BertAdam, LAMB, AdamP. Loops take long to compile, so the others
// (RMSprop, Adadelta, AMSGrad) have none of their own for AVX-512, which takes those of AVX2, and none for float16, which
// goes through tiles.
template <class V>
constexpr bool kFrequent = V::kStates <= 2 && (V::kUnsigned & 1u) == 0;

template <class V, DType kParam, DType kGrad, DType kState>
constexpr Math::Advance make_step() {
  constexpr bool kHasFloat16 = kParam == DType::float16 || kGrad == DType::float16 || kState == DType::float16;
  if constexpr (kHasFloat16 && !kFrequent<V>) return nullptr;
  else return step_mixed<Operands<V, float, Stored<kParam>, Stored<kGrad>, Stored<kState>>>;
}

template <class V>
constexpr SweepMixes make_mixes() {
  SweepMixes mixes = {};
  if constexpr (!kFrequent<V> && !INGOT_ALL_MIXES) {
    return mixes;
  } else if constexpr (V::kTwoPass) {
    mixes.blocks = {advance_and_sum_blocks<V>, apply_blocks<V>};
  } else {
#define FILL_MIX(NUMBER, P, G, S) mixes.step[NUMBER] = make_step<V, DType::P, DType::G, DType::S>();
    INGOT_MIXES(FILL_MIX)
#undef FILL_MIX
    // Three states in codes are rare, too, and their loops the longest: they go through tiles.
    if constexpr (V::kStates == 1 || V::kStates == 2) mixes.step_blocks = step_blocks<V>;
  }
  return mixes;
}

}  // namespace

#define MAKE_MIXES(NAME) make_mixes<NAME::Elements>(),
constexpr SweepMixes INGOT_MIX_TABLE[] = {INGOT_VARIANTS(MAKE_MIXES)};

}  // namespace ingot
