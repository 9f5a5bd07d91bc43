// Loops over elements that no optimizer owns, compiled once per instruction set: INGOT_TABLE names the table this compilation
// fills; the other names say which loops of optimizers (variants.cpp, mixes.cpp, two_pass_mixes.cpp) go with it.
#include "kernels.h"

#include <cstddef>
#include <cstdint>

#include "flags.h"

namespace ingot {
namespace {

template <class F>
struct BitsOf {
  using type = uint32_t;
};
template <>
struct BitsOf<double> {
  using type = uint64_t;
};

#include "elements.h"
#include "dtypes.h"
#include "loop.inc"
#include "convert.inc"
#include "blocks8.inc"
#include "measure.inc"

// The second pass with updates that the first one kept. They are in cache, like the parameter: nothing to prefetch.
void apply_kept(const Slice& slice, int64_t rows, int64_t length, const StepScalars&, const double* keep, const double* rate) {
  float* param = static_cast<float*>(slice.param);
  const float* update = static_cast<const float*>(slice.update);
  apply_rows<float>(
      rows, length, keep, rate, [](int64_t) {}, [&](int64_t i, float k, float r) { param[i] = k * param[i] - r * update[i]; });
}

}  // namespace

constexpr Kernels INGOT_TABLE = {
    INGOT_TABLE_NAME,
    INGOT_VARIANTS_FROM,
    INGOT_SWEEP_MIXES_FROM,
    INGOT_RARE_MIXES_FROM,
    INGOT_TWO_PASS_MIXES_FROM,
    {{load<float, float>, load<float, bfloat16>, load<float, float16>, load<float, double>},
     {load<double, float>, load<double, bfloat16>, load<double, float16>, load<double, double>}},
    {{store<float, float>, store<float, bfloat16>, store<float, float16>, nullptr},
     {nullptr, nullptr, nullptr, store<double, double>}},
    {nullptr, store_noisy<bfloat16>, store_noisy<float16>, nullptr},
    {{}, {}, {}, {}, {decode_blocks<Signed8>, encode_blocks<Signed8>}, {decode_blocks<Unsigned8>, encode_blocks<Unsigned8>}},
    {nullptr, adopt<bfloat16>, adopt<float16>, nullptr},
    apply_kept,
    total,
    {squares<float>, squares<double>},
    {largest<float>, largest<double>},
    {scale<float>, scale<double>},
};

}  // namespace ingot
