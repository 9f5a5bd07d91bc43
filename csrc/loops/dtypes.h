// Storage types: how a stored element becomes a float and back, to nearest even or with random bits.
// Included inside an unnamed namespace. Integer arithmetic instead of F16C or AVX512-BF16 instructions: it vectorises on
// every instruction set, gives the same bits on all of them, and does not depend on the flush-denormals mode.

template <class T>
INLINE T smaller(T a, T b) {
  return a < b ? a : b;
}

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

INLINE uint32_t to_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

INLINE float from_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;

INLINE float widen(float x) { return x; }
INLINE double widen(double x) { return x; }
INLINE float widen(bfloat16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }

INLINE float widen(float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fffu) << 13;
  const uint32_t normal = magnitude + (112u << 23);   // the difference of the exponent biases, 127 - 15
  const uint32_t special = magnitude + (224u << 23);  // infinity and NaN: exponent 31 becomes 255
  // 113 << 23 is 2^-14, the quantum of subnormals once their bits are put into its mantissa.
  const uint32_t subnormal = to_bits(from_bits(magnitude + (113u << 23)) - from_bits(113u << 23));
  const uint32_t finite = magnitude < (1u << 23) ? subnormal : normal;
  return from_bits(sign | (magnitude >= (31u << 23) ? special : finite));
}

INLINE void narrow(float value, float& stored) { stored = value; }
INLINE void narrow(double value, double& stored) { stored = value; }

INLINE void narrow(float value, bfloat16& stored) {
  const uint32_t bits = to_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  stored.bits = static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? 0x7fc0u : rounded);
}

INLINE void narrow(float value, float16& stored) {
  const uint32_t bits = to_bits(value), magnitude = bits & kMagnitude;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Adding 0.5 leaves room for ten bits below 2^-14, so the addition itself rounds.
  const uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
  const uint32_t special = magnitude > kInfinity ? 0x7e00u : 0x7c00u;
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  const uint32_t rounded = magnitude >= (143u << 23) ? special : finite;  // 2^16
  stored.bits = static_cast<uint16_t>(rounded | (bits >> 16 & 0x8000u));
}

// The random bits of one element; the same hash as ingot.storage.rounding.random_bits.
INLINE uint32_t random_bits(int64_t index, uint32_t key) {
  uint32_t x = static_cast<uint32_t>(index) * 0x9e3779b9u + key;
  x ^= static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32) * 0x85ebca6bu;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Up with the probability of the part cut off: add random bits below the last kept one, then cut.
INLINE float add_noise(float value, uint32_t bits, bfloat16) {
  const uint32_t pattern = to_bits(value);
  const uint32_t rounded = (pattern + (bits >> 16)) & 0xffff0000u;
  // Beyond the largest finite value there is no neighbour above: to nearest, as infinity and NaN.
  return from_bits((pattern & kMagnitude) > 0x7f7f0000u ? pattern : rounded);
}

INLINE float add_noise(float value, uint32_t bits, float16) {
  const uint32_t pattern = to_bits(value), magnitude = pattern & kMagnitude;
  const uint32_t rounded = (magnitude + (bits >> 19)) & 0xffffe000u;
  // Below 2^-14 the quantum is fixed, 2^-24. `fraction >= 1 - chance` is exact where `fraction + chance >= 1` would round.
  const float quanta = smaller(from_bits(magnitude), 6.103515625e-05f) * 16777216.0f;
  const float whole = static_cast<float>(static_cast<int32_t>(quanta));
  const float chance = static_cast<float>(static_cast<int32_t>(bits >> 8)) * 5.9604644775390625e-08f;
  const float up = quanta - whole >= 1.0f - chance ? 1.0f : 0.0f;
  const uint32_t small = to_bits((whole + up) * 5.9604644775390625e-08f);
  const uint32_t finite = magnitude < (113u << 23) ? small : rounded;
  return from_bits((pattern & ~kMagnitude) | (magnitude > 0x477fe000u ? magnitude : finite));  // 65504
}
