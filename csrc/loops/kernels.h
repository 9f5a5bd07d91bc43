// The boundary between what is compiled once (the driver) and what is compiled for each instruction set (kernels.cpp, variants.cpp).
#pragma once

#include <cstdint>

#include "sums.h"

namespace ingot {

// The last two are codes of states, which mean something together with the scales of their blocks.
enum class DType : uint8_t { float32, bfloat16, float16, float64, signed8, unsigned8 };
constexpr int kDTypes = 6;
constexpr int64_t kItemSize[kDTypes] = {4, 2, 2, 8, 1, 1};
constexpr bool is_code(DType dtype) { return dtype == DType::signed8 || dtype == DType::unsigned8; }
constexpr int64_t kBlock = 128;  // elements that share a scale, in row-major order

constexpr int kMaxStates = 3;
constexpr int kMaxScalars = 16;
#define COUNT_SUM(NAME, ONE, TWO) +1
constexpr int kSums = INGOT_SUMS(COUNT_SUM);  // the rows of src/ingot/declare/sums.py
#undef COUNT_SUM

// A sum adds element i of a row to lane i % 64, and the lanes of every 1024 elements to a double. Rows of fewer than 64 elements
// that share a kernel call add neighbours pairwise instead. Both constants are part of the result: changing them changes last
// bits, while the number of threads, the split of the work and the width of the vectors do not.
constexpr int64_t kLanes = 64;
constexpr int64_t kTile = 1024;
constexpr int64_t kTileRows = 256;  // most rows of one kernel call

// Consecutive elements of every operand, in the type of the math.
struct Slice {
  void* param;
  const void* grad;
  void* state[kMaxStates];
  void* update;               // room for updates between two passes; only Math::advance_and_sum and apply_kept look at it
  float* scales[kMaxStates];  // of states in blocks, whose codes are in `state`; only loops over blocks look at them
};

// What is the same for all elements of a step. The fields of Scalars are all of one type, so an array holds them.
struct StepScalars {
  double wide[kMaxScalars];
  float narrow[kMaxScalars];
  double grad_scale;
};

struct RowSums {
  double of[kSums][kTileRows];
};

// What `finish` sees of a whole tensor.
struct Totals {
  double sums[kSums];
  double root_n;
  double row_scores;   // those of its rows, added up
  double total_score;  // that of the whole tensor
};

// The loops of one variant in one type. Blocks hold `rows` rows of `length` elements, one after the other: at most kTile
// elements if there is more than one row.
struct Math {
  using Advance = void (*)(const Slice&, int64_t count, const StepScalars&);
  using SumRows = void (*)(const Slice&, int64_t rows, int64_t length, const StepScalars&, RowSums&);
  using Apply = void (*)(const Slice&, int64_t rows, int64_t length, const StepScalars&, const double* keep, const double* rate);
  // For states in 16 bits, so in float only: the new states; then, from the states as they were stored, the parameter or (two
  // passes) the sums. Not for optimizers that look back: their updates do not depend on what was stored.
  Advance advance;
  Advance update;
  SumRows sum;
  // Elementwise optimizers: all in one sweep.
  Advance step;
  // Two-pass optimizers: direction, then param = keep * param - rate * update.
  Apply apply;
  // The next two add to the sums they are given.
  SumRows advance_and_sum;  // in float, it keeps the updates as well if the slice has room for them, for apply_kept
  SumRows sum_for_finish;   // those that finish reads of a row; the others are undefined
};

// Mixes of types that have loops of their own, which convert on the way: X(number, parameter, gradient, states). Going through
// a tile first would cost more than half the bandwidth saves. Other mixes do that.
#define INGOT_MIXES(X)               \
  X(0, bfloat16, bfloat16, float32)  \
  X(1, float32, float32, bfloat16)   \
  X(2, bfloat16, bfloat16, bfloat16) \
  X(3, float32, float32, float16)    \
  X(4, float32, float16, float32)

#define COUNT_MIX(NUMBER, P, G, S) +1
constexpr int kMixes = INGOT_MIXES(COUNT_MIX);
#undef COUNT_MIX

// Counts and lengths of rows must be multiples of kLanes, those of blocks whole blocks; null where a mix has no loops of the kind.
struct TwoPassMix {
  Math::SumRows advance_and_sum;
  Math::Apply apply;
};
struct SweepMixes {
  Math::Advance step[kMixes];
  // Float32 parameters and gradients, states as codes: elementwise optimizers, and those with two passes.
  Math::Advance step_blocks;
  TwoPassMix blocks;
};
struct TwoPassMixes {
  TwoPassMix math[kMixes];
};

// Elements between two prefetches: one line of float32 per stream.
constexpr int64_t kPrefetchStep = 16;

// How far ahead of a loop to prefetch, in bytes per stream. From 1 to 4 KB all is alike for AdamW and its four streams; SGD
// with three likes 2 KB better than 1 (medians on BERT-base 56.4 and 60.3 ms, on LoRA 4.29 and 4.43, one process).
constexpr int64_t kAhead = 2048;

// Whether this processor does better without prefetches in a loop over up to kFewStreams tensors of one type: it reads that many
// ahead itself. With bfloat16 among them (mixed.inc) or more of them, prefetches made a step 4 to 25 % faster there, too. Given by
// choose_kernels().
inline bool reads_few_ahead = false;
constexpr int kFewStreams = 3;

extern const int kVariantCount;
extern const Math kWideMath[];  // the loops in double, by the number of the variant

struct Variant {
  int number;
  const char* name;
  const char* digest;  // of the math it was compiled from
  int states;
  int scalars;
  bool two_pass;
  bool looks_back;            // the update comes from the states before the step
  bool rows;                  // finish looks at rows
  unsigned unsigned_states;   // bit k: state k is never negative
  bool direction_reads_grad;  // if not, the second pass leaves the gradient alone
  unsigned sums;              // bit k: sum k is wanted
  unsigned row_sums;          // those that finish reads of a row
  bool row_sums_read_grad;
  Math narrow;  // in float
  void (*score)(const RowSums&, int64_t rows, double root_n, const StepScalars&, double* scores);
  void (*finish)(const RowSums&, int64_t rows, double root_n, const Totals&, const StepScalars&, double* keep, double* rate);

  const Math& math(bool in_double) const { return in_double ? kWideMath[number] : narrow; }
};

// Which random bits a tensor is rounded with; `index` is that of its first element in the slice, row-major. If the elements
// of the slice are not consecutive in row-major order, `indices` lists them.
struct Noise {
  uint32_t key;
  int64_t index;
  const int64_t* indices;
};

// How states in blocks become numbers and back. `begin` is the number of the first element in the tensor, `count` how many there
// are; to encode, `begin` must begin a block, and the last block must be whole or the last of the tensor.
struct Codec {
  void (*decode)(const void* codes, const float* scales, int64_t begin, int64_t count, float* values);
  void (*encode)(const float* values, int64_t begin, int64_t count, void* codes, float* scales, const Noise* noise);
};

struct Kernels {
  const char* name;
  const Variant* variants;
  const SweepMixes* sweep_mixes;  // by the number of the variant, like the next two; null if none were compiled
  const SweepMixes* rare_mixes;   // those of variants that have none in the first
  const TwoPassMixes* two_pass_mixes;
  // Between storage and the type of the math, [float, double][DType]; null where no optimizer needs it.
  void (*load[2][kDTypes])(const void* stored, void* values, int64_t count);
  void (*store[2][kDTypes])(const void* values, void* stored, int64_t count);
  void (*store_noisy[kDTypes])(const void* values, void* stored, int64_t count, const Noise&);
  Codec codec[kDTypes];
  // The parameter where it is not its rounded master any more: someone else changed it.
  void (*adopt[kDTypes])(void* master, const void* stored, int64_t count);
  Math::Apply apply_kept;  // param = keep * param - rate * update, with updates that were kept, in float
  double (*total)(const double* values, int64_t count);
  void (*squares[2])(const void* values, int64_t count, double* lanes);  // adds to kLanes sums
  double (*largest[2])(const void* values, int64_t count);
  void (*scale[2])(void* values, int64_t count, double factor);

  const SweepMixes* mixes_of(int variant) const {
    if (sweep_mixes == nullptr) return nullptr;
    const SweepMixes& own = sweep_mixes[variant];
    const bool none = own.step[0] == nullptr && own.blocks.apply == nullptr;
    return none && rare_mixes != nullptr ? rare_mixes + variant : &own;
  }
};

// Defined as constexpr: code that fills a table would run when the module is loaded, on machines that lack its instructions.
extern const Variant kBaselineVariants[];
extern const Variant kAvx2Variants[];
extern const SweepMixes kBaselineSweepMixes[];
extern const SweepMixes kAvx2SweepMixes[];
extern const SweepMixes kAvx512SweepMixes[];
extern const TwoPassMixes kBaselineTwoPassMixes[];
extern const TwoPassMixes kAvx2TwoPassMixes[];
extern const TwoPassMixes kAvx512TwoPassMixes[];
extern const Kernels kBaseline;
extern const Kernels kAvx2;
extern const Kernels kAvx512;

}  // namespace ingot
