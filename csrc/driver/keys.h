// Keys of the stochastic rounding: which random bits an operand of a tensor gets in a step, as ingot.storage.rounding has it.
#pragma once

#include <cstdint>

namespace ingot {

// Chris Wellons' "lowbias32".
inline uint32_t mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

constexpr uint32_t kGolden = 0x9e3779b9u;
constexpr int64_t kCountersPerParam = 8;

// What all keys of a step have in common.
inline uint32_t step_key(uint64_t seed, uint64_t step) {
  const uint32_t base = mix(static_cast<uint32_t>(seed) ^ mix(static_cast<uint32_t>(seed >> 32)));
  return mix(base ^ mix(static_cast<uint32_t>(step)));
}

// `start` is the row-major index of the first local element in the whole tensor. Its upper 32 bits are left out, so that elements of a
// shard from 2^32 on have other bits than in the whole tensor: see Rounding.keys in src/ingot/storage/rounding.py.
inline uint32_t operand_key(uint32_t of_step, int64_t ordinal, int operand, int64_t start) {
  const uint64_t counter = static_cast<uint64_t>(ordinal * kCountersPerParam + operand);
  uint32_t x = static_cast<uint32_t>(counter) * kGolden + of_step;
  x ^= static_cast<uint32_t>(counter >> 32) * 0x85ebca6bu;
  return mix(x) + static_cast<uint32_t>(start) * kGolden;
}

}  // namespace ingot
