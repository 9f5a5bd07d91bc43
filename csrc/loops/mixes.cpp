// The loops of every optimizer over operands of other types than float, converted on the way; compiled once per instruction
// set: INGOT_MIX_TABLE names the table this compilation fills.
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

template <DType kType>
using Stored =
    std::conditional_t<kType == DType::bfloat16, bfloat16, std::conditional_t<kType == DType::float16, float16, float>>;

// Whole vectors only: loops for what is left over would take longer to compile than these.
template <class O, class Apply>
INLINE void for_whole(const O& o, int64_t begin, int64_t end, Apply apply) {
  for (int64_t i = begin; i < end; i += kLanes) {
    for (int64_t from = i; from < i + kLanes; from += kStride) o.template prefetch_ahead<true>(from);
    INDEPENDENT
    NOT_UNROLLED
    for (int64_t j = i; j < i + kLanes; ++j) apply(j);
  }
}

template <class O>
void step_mixed(const Block& block, int64_t count, const StepScalars& scalars) {
  const O o(block, scalars);
  const float keep = o.s.keep, rate = o.s.rate;
  for_whole(o, 0, count, [&](int64_t i) { o.template apply<true>(i, keep, rate); });
}

template <class O>
void sum_mixed(const Block& block, int64_t rows, int64_t length, const StepScalars& scalars, RowSums& sums) {
  sum_long_rows<O::V::kSums, kFirst, true>(O(block, scalars), rows, length, sums);
}

template <class O>
void apply_mixed(const Block& block, int64_t rows, int64_t length, const StepScalars& scalars, const double* keep,
                 const double* rate) {
  const O o(block, scalars);
  for (int64_t row = 0; row < rows; ++row) {
    const float k = static_cast<float>(keep[row]), r = static_cast<float>(rate[row]);
    for_whole(o, row * length, (row + 1) * length, [&](int64_t i) { o.template apply<false>(i, k, r); });
  }
}

// Two-pass optimizers have them for bfloat16 only: their loops take the longest to compile, and float16 states are rare.
template <class O, bool kHasFloat16>
constexpr MixedMath make_mixed_math() {
  if constexpr (!O::V::kTwoPass) return {step_mixed<O>, nullptr, nullptr};
  else if constexpr (!kHasFloat16) return {nullptr, sum_mixed<O>, apply_mixed<O>};
  else return {nullptr, nullptr, nullptr};
}

template <class V, DType kParam, DType kGrad, DType kState>
constexpr MixedMath make_mixed() {
  constexpr bool kHasFloat16 = kParam == DType::float16 || kGrad == DType::float16 || kState == DType::float16;
  return make_mixed_math<Operands<V, float, Stored<kParam>, Stored<kGrad>, Stored<kState>>, kHasFloat16>();
}

template <class V>
constexpr Mixes make_mixes() {
  Mixes mixes = {};
#define FILL_MIX(NUMBER, P, G, S) mixes.math[NUMBER] = make_mixed<V, DType::P, DType::G, DType::S>();
  INGOT_MIXES(FILL_MIX)
#undef FILL_MIX
  if constexpr (!V::kTwoPass && V::kStates > 0) mixes.step_blocks = step_blocks<V>;
  return mixes;
}

}  // namespace

#define MAKE_MIXES(NAME) make_mixes<NAME::Elements>(),
constexpr Mixes INGOT_MIX_TABLE[] = {INGOT_VARIANTS(MAKE_MIXES)};

}  // namespace ingot
