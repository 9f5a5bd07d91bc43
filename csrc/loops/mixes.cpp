// The loops of elementwise optimizers over operands of other types than float, converted on the way; compiled once per instruction
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
#include "blocks8.inc"
#include "step_blocks.inc"
#include "mixed.inc"

template <class O>
void step_mixed(const Block& block, int64_t count, const StepScalars& scalars) {
  const O o(block, scalars);
  const float keep = o.s.keep, rate = o.s.rate;
  for_whole(o, 0, count, [&](int64_t i) { o.template apply<true>(i, keep, rate); });
}

template <class V>
constexpr SweepMixes make_mixes() {
  SweepMixes mixes = {};
  if constexpr (!V::kTwoPass) {
#define FILL_MIX(NUMBER, P, G, S) \
  mixes.step[NUMBER] = step_mixed<Operands<V, float, Stored<DType::P>, Stored<DType::G>, Stored<DType::S>>>;
    INGOT_MIXES(FILL_MIX)
#undef FILL_MIX
    if constexpr (V::kStates > 0) mixes.step_blocks = step_blocks<V>;
  }
  return mixes;
}

}  // namespace

#define MAKE_MIXES(NAME) make_mixes<NAME::Elements>(),
constexpr SweepMixes INGOT_MIX_TABLE[] = {INGOT_VARIANTS(MAKE_MIXES)};

}  // namespace ingot
