// The two passes of optimizers over operands of other types than float, converted on the way: INGOT_MIX_TABLE names the table
// this compilation fills.
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
#include "mixed.inc"

template <class O>
void sum_mixed(const Slice& slice, int64_t rows, int64_t length, const StepScalars& scalars, RowSums& sums) {
  sum_long_rows<O::V::kSums, kFirst, true>(O(slice, scalars), rows, length, sums);
}

template <class O>
void apply_mixed(const Slice& slice, int64_t rows, int64_t length, const StepScalars& scalars, const double* keep,
                 const double* rate) {
  const O o(slice, scalars);
  for (int64_t row = 0; row < rows; ++row) {
    const float k = static_cast<float>(keep[row]), r = static_cast<float>(rate[row]);
    for_whole(o, row * length, (row + 1) * length, [&](int64_t i) { o.template apply<false>(i, k, r); });
  }
}

// For bfloat16 only: these loops take the longest to compile, and float16 states are rare.
template <class V, DType kParam, DType kGrad, DType kState>
constexpr TwoPassMix make_mix() {
  using O = Operands<V, float, Stored<kParam>, Stored<kGrad>, Stored<kState>>;
  constexpr bool kHasFloat16 = kParam == DType::float16 || kGrad == DType::float16 || kState == DType::float16;
  if constexpr (kHasFloat16) return {};
  else return {sum_mixed<O>, apply_mixed<O>};
}

template <class V>
constexpr TwoPassMixes make_mixes() {
  TwoPassMixes mixes = {};
  if constexpr (V::kTwoPass) {
#define FILL_MIX(NUMBER, P, G, S) mixes.math[NUMBER] = make_mix<V, DType::P, DType::G, DType::S>();
    INGOT_MIXES(FILL_MIX)
#undef FILL_MIX
  }
  return mixes;
}

}  // namespace

#define MAKE_MIXES(NAME) make_mixes<NAME::Elements>(),
constexpr TwoPassMixes INGOT_MIX_TABLE[] = {INGOT_VARIANTS(MAKE_MIXES)};

}  // namespace ingot
