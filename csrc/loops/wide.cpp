// The loops of every optimizer in double, for every machine: roots and divisions take as long in longer vectors. AdamW and LAMB
// on tensors in cache take the same time compiled for AVX2.
#include <cstdint>

#include "flags.h"
#include "kernels.h"

namespace ingot {
namespace {

#include "elements.h"
#include "dtypes.h"
#include "generated.h"
#include "loop.inc"
#include "reduce.inc"

// What only 16-bit states or small tensors ask for is left out: it would never be called, or hardly ever.
template <class V>
constexpr Math make_math() {
  Math m = {};
  if constexpr (V::kTwoPass) {
    m.apply = apply<V, double>;
    m.advance_and_sum = sum_rows<V, double, V::kSums, kFirst>;
    if constexpr (V::kRowSums != 0) m.sum_for_finish = sum_rows<V, double, V::kRowSums, kAgain>;
  } else {
    m.step = step<V, double>;
  }
  return m;
}

}  // namespace

#define MAKE_MATH(NAME) make_math<NAME::Elements>(),
constexpr Math kWideMath[] = {INGOT_VARIANTS(MAKE_MATH)};
constexpr int kVariantCount = sizeof kWideMath / sizeof kWideMath[0];

}  // namespace ingot
