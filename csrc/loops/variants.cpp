// The loops of every optimizer in float, compiled once per instruction set: INGOT_VARIANT_TABLE names the table this compilation
// fills.
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

// Computes all sums although `finish` reads only those over rows: the loop over all of them is compiled anyway, and one over fewer
// would make the library larger. Where neither the update nor these sums read the gradient, the slice has none. The parameter,
// which is in cache, is then read in its place, for sums that nobody looks at.
template <class V>
void sum_for_finish(const Slice& slice, int64_t rows, int64_t length, const StepScalars& step, RowSums& sums) {
  Slice sufficient = slice;
  if constexpr (!V::kDirectionReadsGrad && !reads_grad(V::kRowSums)) sufficient.grad = slice.param;
  sum_rows<V, float, V::kSums, kAgain>(sufficient, rows, length, step, sums);
}

template <class V>
constexpr Math make_math() {
  Math m = {};
  if constexpr (!V::kLooksBack) m.advance = advance<V, float>;
  if constexpr (V::kTwoPass) {
    m.apply = apply<V, float>;
    m.advance_and_sum = sum_rows<V, float, V::kSums, kFirstKept>;
    m.sum = sum_rows<V, float, V::kSums, kAgain>;
    if constexpr (V::kRowSums != 0) m.sum_for_finish = sum_for_finish<V>;
  } else {
    if constexpr (!V::kLooksBack) m.update = update<V, float>;
    m.step = step<V, float>;
  }
  return m;
}

template <class V>
constexpr Variant make_variant(int number) {
  using Elements = typename V::Elements;  // loops of variants with the same element math are compiled once
  Variant v = {};
  v.number = number;
  v.name = V::kName;
  v.digest = V::kDigest;
  v.states = V::kStates;
  v.scalars = V::kScalars;
  v.two_pass = V::kTwoPass;
  v.looks_back = V::kLooksBack;
  v.unsigned_states = V::kUnsigned;
  v.direction_reads_grad = V::kDirectionReadsGrad;
  v.narrow = make_math<Elements>();
  if constexpr (V::kTwoPass) {
    v.rows = V::kRows;
    v.sums = V::kSums;
    v.row_sums = V::kRowSums;
    v.row_sums_read_grad = reads_grad(V::kRowSums);
    v.score = score<V>;
    v.finish = finish<V>;
  }
  return v;
}

#define NUMBER_VARIANT(NAME) kNumber_##NAME,
enum Number { INGOT_VARIANTS(NUMBER_VARIANT) };

}  // namespace

#define MAKE_VARIANT(NAME) make_variant<NAME>(kNumber_##NAME),
constexpr Variant INGOT_VARIANT_TABLE[] = {INGOT_VARIANTS(MAKE_VARIANT)};

}  // namespace ingot
