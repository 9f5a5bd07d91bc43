// Every optimizer on four threads, for ThreadSanitizer: `make tsan`. The results must be those of one thread, bit for bit.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "driver/measure.h"
#include "driver/step.h"

namespace {

using namespace ingot;

// Stands in for torch's pool, which gives every thread a part of the range.
int four_threads(int64_t begin, int64_t end, int64_t, void (*body)(int64_t, int64_t, void*), void* context) {
  std::vector<std::thread> threads;
  const int64_t part = (end - begin + 3) / 4;
  for (; begin < end; begin += part) threads.emplace_back([=] { body(begin, std::min(begin + part, end), context); });
  for (std::thread& thread : threads) thread.join();
  return 0;
}

// Split rows, short rows, odd rows, more rows than sums are kept of, small tensors.
const std::vector<std::vector<int64_t>> kShapes = {{300000}, {16, 64}, {5000, 9}, {2, 70000}, {1000, 300}, {70000, 2}, {1}};

// How states are kept.
enum Kind { kFloat32, kBfloat16, kBlocks };
const char* const kKinds[] = {"float32", "bfloat16", "8bit"};

struct Problem {
  Table table;
  std::vector<std::vector<float>> memory;

  Problem(const Variant& variant, Kind kind) {
    table.variant = variant.number;
    table.states = variant.states;
    table.coded = kind == kBlocks && variant.states > 0;
    TableBuilder builder(table, true, variant.rows, 0, variant.unsigned_states);
    for (const std::vector<int64_t>& shape : kShapes) {
      DLTensor tensors[kOperands] = {};
      const DLTensor* operands[kOperands] = {};
      for (int k = 0; k < kState + variant.states; ++k) {
        tensors[k].data = fill(shape, k);
        tensors[k].device.device_type = kDLCPU;
        tensors[k].ndim = static_cast<int>(shape.size());
        tensors[k].dtype = {kDLFloat, 32, 1};
        tensors[k].shape = const_cast<int64_t*>(shape.data());
        operands[k] = &tensors[k];
      }
      int64_t blocks[1] = {(count_of(shape) + kBlock - 1) / kBlock};
      for (int k = 0; k < variant.states && kind != kFloat32; ++k) {
        // Any bits are a state: those of the float32 numbers, of which half or a quarter are used.
        const bool is_unsigned = (variant.unsigned_states >> k & 1u) != 0;
        DLTensor& state = tensors[kState + k];
        state.dtype = kind == kBfloat16 ? DLDataType{kDLBfloat, 16, 1} : DLDataType{is_unsigned ? kDLUInt : kDLInt, 8, 1};
        if (kind != kBlocks) continue;
        DLTensor& scale = tensors[kScale + k];
        scale = state;
        scale.data = fill({blocks[0]}, k);
        scale.ndim = 1;
        scale.dtype = {kDLFloat, 32, 1};
        scale.shape = blocks;
        operands[kScale + k] = &scale;
      }
      if (!builder.add(operands).empty()) std::abort();
    }
    schedule(table, kBaseline);
  }

  static int64_t count_of(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
  }

  float* fill(const std::vector<int64_t>& shape, int operand) {
    const int64_t count = count_of(shape);
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 7919 + operand) % 1000 + 1) / 1000;
    memory.push_back(std::move(values));
    return memory.back().data();
  }
};

// One step and the measures; everything it computed.
std::vector<std::vector<float>> step(const Variant& variant, Kind kind, bool sharded) {
  Problem problem(variant, kind);
  const Table& table = problem.table;
  StepScalars scalars = {};
  for (int k = 0; k < kMaxScalars; ++k) scalars.wide[k] = scalars.narrow[k] = 0.5f;
  scalars.grad_scale = 1;
  const TwoPass two_pass(table, kBaseline, scalars);
  if (!variant.two_pass) {
    const Job job = {&table, &scalars};
    run_elementwise(&job, &job + 1, kBaseline);
  } else if (!sharded) {
    two_pass.run();
  } else {
    int64_t rows = 0;
    for (const Tensor& tensor : table.tensors) rows += tensor.rows;
    std::vector<double> sums(rows * kSums);
    two_pass.first(sums.data(), rows);
    two_pass.second(sums.data(), sums.data() + rows);
  }
  const double squares = sum_of_squares(table, kBaseline), largest = largest_magnitude(table, kBaseline);
  scale(table, kBaseline, 0.5);
  problem.memory.push_back({static_cast<float>(squares), static_cast<float>(largest)});
  return problem.memory;
}

// Bit for bit: states in other types than float may look like NaN, which no float equals.
bool equal(const std::vector<std::vector<float>>& one, const std::vector<std::vector<float>>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const auto& a, const auto& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  });
}

// Every task is done once, whether threads take one at a time or several.
bool shares(int64_t tasks) {
  std::vector<char> done(tasks);
  share(tasks, kWorthThreads, [&](int64_t task) { ++done[task]; });
  return std::count(done.begin(), done.end(), 1) == tasks;
}

// What one task throws in a thread of the pool comes out here, and the other tasks are done, but for those taken with it.
bool throws_again(int64_t tasks, int64_t most_taken) {
  std::vector<char> done(tasks);
  const int64_t bad = tasks / 2;
  try {
    share(tasks, kWorthThreads, [&](int64_t task) {
      if (task == bad) throw std::bad_alloc();
      ++done[task];
    });
  } catch (const std::bad_alloc&) {
    const auto after = std::find(done.begin() + bad, done.end(), 1);
    return after - done.begin() <= bad + most_taken && std::count(done.begin(), done.begin() + bad, 1) == bad &&
           std::count(after, done.end(), 1) == done.end() - after;
  }
  return false;
}

}  // namespace

int main() {
  parallel_for = four_threads;
  for (const int64_t tasks : {1, 100, 1003, 4096}) {
    if (!shares(tasks)) {
      std::printf("of %d tasks some are not done once\n", static_cast<int>(tasks));
      return 1;
    }
  }
  if (!throws_again(100, 1) || !throws_again(1003, kMostAtATime)) {
    std::puts("an exception in a thread is lost, or tasks with it");
    return 1;
  }
  for (int i = 0; i < kVariantCount; ++i) {
    const Variant& variant = kBaseline.variants[i];
    for (const Kind kind : {kFloat32, kBfloat16, kBlocks}) {
      for (const bool sharded : {false, true}) {
        if ((sharded && !variant.two_pass) || (kind != kFloat32 && variant.states == 0)) continue;
        parallel_for = nullptr;
        const auto alone = step(variant, kind, sharded);
        parallel_for = four_threads;
        const bool same = equal(step(variant, kind, sharded), alone);
        std::printf("%-24s %-8s %s %s\n", variant.name, kKinds[kind], sharded ? "sharded" : "whole  ",
                    same ? "the same bits" : "OTHER BITS");
        if (!same) return 1;
      }
    }
  }
}
