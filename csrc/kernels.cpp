// All loops over elements, compiled once per instruction set: INGOT_TABLE names the table this compilation fills.
#include "kernels.h"

#include <cstddef>
#include <cstdint>

#ifndef __NO_MATH_ERRNO__
#if defined(__GNUC__) && !defined(__clang__)
#error "compile with -fno-math-errno: without it g++ does not vectorise sqrt (5 times slower)"
#endif
#endif
#ifdef __FAST_MATH__
#error "compile without -ffast-math: results must be the same bits on every instruction set"
#endif

#define INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define NOT_VECTORISED _Pragma("clang loop vectorize(disable)")
#define ONE_BY_ONE __attribute__((noinline))
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define NOT_VECTORISED
#define ONE_BY_ONE __attribute__((noinline, optimize("no-tree-vectorize")))
#endif

namespace ingot {
namespace {

template <class T>
INLINE T smaller(T a, T b) {
  return a < b ? a : b;
}

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
#include "generated.h"
#include "loop.inc"
#include "reduce.inc"
#include "convert.inc"
#include "measure.inc"

// What only 16-bit states or small tensors ask for is left out in double: it would never be called, or hardly ever.
template <class V, class F>
constexpr Math make_math() {
  Math m = {};
  constexpr bool kNarrow = sizeof(F) == sizeof(float);
  if constexpr (V::kTwoPass) {
    m.apply = apply<V, F>;
    m.advance_and_sum = sum_rows<V, F, V::kSums, kFirst>;
    if constexpr (V::kRowSums != 0) m.sum_for_finish = sum_rows<V, F, V::kRowSums, kAgain>;
    if constexpr (kNarrow) {
      m.advance = advance<V, F>;
      m.sum = sum_rows<V, F, V::kSums, kAgain>;
      m.advance_sum_keep = sum_rows<V, F, V::kSums, kFirstKept>;
    }
  } else {
    m.step = step<V, F, F, F>;
    if constexpr (kNarrow) {
      m.advance = advance<V, F>;
      m.apply = apply<V, F>;
    }
  }
  return m;
}

template <class V, class T>
constexpr StoredMath make_stored_math() {
  if constexpr (V::kTwoPass) return {nullptr, sum_rows<V, float, V::kSums, kFirst, T, T>, apply<V, float, T, T>};
  else return {step<V, float, T, T>, nullptr, nullptr};
}

template <class V>
constexpr Variant make_variant() {
  Variant v = {V::kName,  V::kStates, V::kScalars, V::kTwoPass, false, V::kDirectionReadsGrad, 0u, 0u,
               {make_math<V, float>(), make_math<V, double>()}, make_stored_math<V, bfloat16>(), nullptr, nullptr};
  if constexpr (V::kTwoPass) {
    v.rows = V::kRows;
    v.sums = V::kSums;
    v.row_sums = V::kRowSums;
    v.score = score<V>;
    v.finish = finish<V>;
  }
  return v;
}

#define MAKE_VARIANT(NAME) make_variant<NAME>(),
constexpr Variant kVariants[] = {INGOT_VARIANTS(MAKE_VARIANT)};

}  // namespace

extern const Kernels INGOT_TABLE = {
    INGOT_TABLE_NAME,
    static_cast<int>(sizeof kVariants / sizeof kVariants[0]),
    kVariants,
    {{load<float, float>, load<float, bfloat16>, load<float, float16>, load<float, double>},
     {load<double, float>, load<double, bfloat16>, load<double, float16>, load<double, double>}},
    {{store<float, float>, store<float, bfloat16>, store<float, float16>, nullptr},
     {nullptr, nullptr, nullptr, store<double, double>}},
    {nullptr, store_noisy<bfloat16>, store_noisy<float16>, nullptr},
    {nullptr, adopt<bfloat16>, adopt<float16>, nullptr},
    apply_kept,
    total,
    {squares<float>, squares<double>},
    {largest<float>, largest<double>},
    {scale<float>, scale<double>},
    {{nullptr, floor_loop<0, 1>, floor_loop<0, 2>, floor_loop<0, 3>, floor_loop<0, 4>},
     {nullptr, floor_loop<1, 1>, floor_loop<1, 2>, floor_loop<1, 3>, floor_loop<1, 4>},
     {nullptr, floor_loop<2, 1>, floor_loop<2, 2>, floor_loop<2, 3>, floor_loop<2, 4>}},
};

}  // namespace ingot
