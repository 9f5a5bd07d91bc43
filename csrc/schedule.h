// Work shared among torch's threads. Which thread does what is left to chance; results never depend on it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "float_mode.h"
#include "table.h"

namespace ingot {

// torch_parallel_for of libtorch_cpu: torch's own pool, so torch.set_num_threads holds and no second pool competes.
using ParallelFor = int (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                            void* context);
inline ParallelFor parallel_for = nullptr;  // given by setup()

constexpr int64_t kWorthThreads = 32768;  // elements; below, waking a thread takes longer than the work
constexpr int64_t kGroup = 1 << 14;       // small tensors are grouped until they hold this many elements
constexpr int64_t kStretch = 1 << 16;     // elements of a large tensor per task; 64 K to 256 K measure alike
constexpr int64_t kMostTasks = 4096;      // stretches grow beyond that, to keep the list small for any model

// Calls work(task) for every task. Threads take the next task when they are free: tasks may differ in size. What a task throws
// is thrown again here; the others are still done.
template <class Work>
void share(int64_t tasks, int64_t elements, const Work& work) {
  struct Context {
    const Work& work;
    const int64_t tasks;
    const FloatMode mode;
    std::atomic<int64_t> next;
    std::atomic<bool> failed;
    std::exception_ptr error;  // the first; written by the thread that set `failed`
  } context = {work, tasks, FloatMode::current(), {0}, {false}, nullptr};
  const auto body = [](int64_t, int64_t, void* opaque) {
    Context& c = *static_cast<Context*>(opaque);
    const WithFloatMode mode(c.mode);
    for (int64_t task; (task = c.next.fetch_add(1, std::memory_order_relaxed)) < c.tasks;) {
      try {
        c.work(task);
      } catch (const std::exception&) {  // must not reach torch's pool, which would drop it
        if (!c.failed.exchange(true)) c.error = std::current_exception();
      }
    }
  };
  if (tasks > 1 && elements >= kWorthThreads && parallel_for != nullptr) parallel_for(0, tasks, 1, body, &context);
  body(0, 0, &context);  // all of it, or nothing is left
  if (context.error) std::rethrow_exception(context.error);
}

// One task: a stretch of a large tensor (end > 0), or the small tensors [tensor, last).
struct Task {
  int64_t tensor;
  int64_t last;
  int64_t begin;
  int64_t end;
};

// Adds a small tensor to the last group, or starts another. `grouped` counts the elements of the last group.
inline void add_small(std::vector<Task>& tasks, int64_t tensor, int64_t count, int64_t& grouped) {
  if (tasks.empty() || grouped >= kGroup || tasks.back().end > 0 || tasks.back().last != tensor) {
    tasks.push_back({tensor, tensor, 0, 0});
    grouped = 0;
  }
  tasks.back().last = tensor + 1;
  grouped += count;
}

// Every element of every tensor, in stretches that any thread may take.
inline std::vector<Task> stretches(const Table& table, int64_t* elements) {
  *elements = 0;
  for (const Tensor& tensor : table.tensors) *elements += tensor.count();
  const int64_t stretch = std::max(kStretch, (*elements / kMostTasks + kTile - 1) / kTile * kTile);
  std::vector<Task> tasks;
  int64_t grouped = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(table.tensors.size()); ++i) {
    const int64_t count = table.tensors[i].count();
    if (count <= stretch) {
      add_small(tasks, i, count, grouped);
      continue;
    }
    for (int64_t begin = 0; begin < count; begin += stretch) {
      tasks.push_back({i, i + 1, begin, std::min(begin + stretch, count)});
    }
  }
  return tasks;
}

}  // namespace ingot
