// The words of declared math for one element, and the sums between two passes.
// Included inside an unnamed namespace: code for one instruction set must never be shared with another by the linker.

template <class F>
inline F sqrt(F x) {
  if constexpr (sizeof(F) == 4) return __builtin_sqrtf(x);
  else return __builtin_sqrt(x);
}

template <class F>
inline F absolute(F x) {
  if constexpr (sizeof(F) == 4) return __builtin_fabsf(x);
  else return __builtin_fabs(x);
}

// NaN if either is NaN, like torch.maximum.
template <class F>
inline F maximum(F a, F b) {
  return a > b || a != a ? a : b;
}

template <class F>
inline F where(bool condition, F a, F b) {
  return condition ? a : b;
}

// The sums of one row or one tensor, one field for each row of the table.
#define DECLARE_SUM(NAME, ONE, TWO) F NAME;
template <class F>
struct Sums {
  INGOT_SUMS(DECLARE_SUM)
  F root_n;
};
#undef DECLARE_SUM
