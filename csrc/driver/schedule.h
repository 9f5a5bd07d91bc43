// Work shared among torch's threads. Any thread may take any task; results never depend on which.
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
using ParallelFor = int (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*), void* context);
inline ParallelFor parallel_for = nullptr;  // given by setup()

constexpr int64_t kWorthThreads = 32768;  // elements; below, waking a thread takes longer than the work
constexpr int64_t kSmallTask = 1 << 14;   // a task takes small tensors until they hold this many elements
constexpr int64_t kStretch = 1 << 16;     // elements of a large tensor per task
constexpr int64_t kMostTasks = 4096;      // stretches grow beyond that, to keep the list small for any model
constexpr int64_t kTurns = 32;            // a thread takes several tasks at a time only if it then still has so many turns
constexpr int64_t kMostAtATime = 8;

// Runs `body` on this thread and on as many threads of the pool as torch gives, with the number of tasks that would be its share.
// `tasks` and `elements` say how much work there is, to decide whether the pool is asked at all. An exception of `body` is thrown
// again here, after all threads have ended.
template <class Body>
void on_threads(int64_t tasks, int64_t elements, const Body& body) {
  struct Context {
    const Body& body;
    const FloatMode mode;
    std::atomic<bool> failed;
    std::exception_ptr error;  // the first; written by the thread that set `failed`
  } context = {body, FloatMode::current(), {false}, nullptr};
  const auto run = [](int64_t begin, int64_t end, void* opaque) {
    Context& c = *static_cast<Context*>(opaque);
    const WithFloatMode mode(c.mode);
    try {
      c.body(end - begin);
    } catch (const std::exception&) {  // must not reach torch's pool, which would drop it
      if (!c.failed.exchange(true)) c.error = std::current_exception();
    }
  };
  if (tasks > 1 && elements >= kWorthThreads && parallel_for != nullptr) parallel_for(0, tasks, 1, run, &context);
  // Without the pool, this does all the work; after the pool no task is left, and it ends at once.
  run(0, 0, &context);
  if (context.error) std::rethrow_exception(context.error);
}

// Calls work(task) for every task. Threads take the next tasks when they are free: tasks may differ in size. They take some at a
// time where there are many: neighbours lie one behind the other in memory, and a processor that reads ahead begins anew wherever
// a thread does. Where memory is fast, AdamW on BERT-base takes 28.6 ms one by one and 27.1 by eight. If work throws, the other
// tasks are done but for those taken with that one.
template <class Work>
void share(int64_t tasks, int64_t elements, const Work& work) {
  std::atomic<int64_t> next{0};
  on_threads(tasks, elements, [&](int64_t own) {
    const int64_t taken = std::clamp<int64_t>(own / kTurns, 1, kMostAtATime);
    for (int64_t begin; (begin = next.fetch_add(taken, std::memory_order_relaxed)) < tasks;) {
      for (int64_t task = begin; task < std::min(begin + taken, tasks); ++task) work(task);
    }
  });
}

// One table of a step, and the numbers it is run with.
struct Job {
  const Table* table;
  const StepScalars* scalars;
};

// Calls work(job, number) for every task of several jobs as if they were one list: threads wait for one another once.
template <class Work>
void share_jobs(const Job* begin, const Job* end, const Work& work) {
  const auto size = [](const Job* job) { return static_cast<int64_t>(job->table->tasks.size()); };
  int64_t tasks = 0, elements = 0;
  for (const Job* job = begin; job != end; ++job) {
    tasks += size(job);
    elements += job->table->elements;
  }
  share(tasks, elements, [&](int64_t number) {
    const Job* job = begin;
    for (; number >= size(job); ++job) number -= size(job);
    work(*job, number);
  });
}

// Units that threads go through twice. The second time, each begins with those it took last the first time, which are still in
// its own cache, and then helps the others. LAMB and AdamP on BERT-base and ResNet-50: 2 to 5 % faster than in order.
class TwiceTaken {
 public:
  explicit TwiceTaken(int64_t most) : takers_(most) {}

  // The first time, by the thread that takes the unit.
  void take(int64_t unit) { takers_[unit].store(me(), std::memory_order_relaxed); }

  // The second time, on every thread: visits the units it gets.
  template <class Visit>
  void take_again(int64_t units, Visit visit) {
    for (int64_t unit = units - 1; unit >= 0; --unit) {
      if (takers_[unit].load(std::memory_order_relaxed) == me() && claim(unit)) visit(unit);
    }
    for (int64_t unit = 0; unit < units; ++unit) {
      if (claim(unit)) visit(unit);
    }
  }

 private:
  static const void* me() {
    static thread_local const char mark = 0;
    return &mark;
  }
  bool claim(int64_t unit) { return takers_[unit].exchange(nullptr, std::memory_order_relaxed) != nullptr; }

  std::vector<std::atomic<const void*>> takers_;
};

// Adds a small tensor to the last task, or starts another. `filled` counts the elements of the last task.
inline void add_small(std::vector<Task>& tasks, int64_t tensor, int64_t count, int64_t& filled) {
  if (tasks.empty() || filled >= kSmallTask || tasks.back().end > 0 || tasks.back().last != tensor) {
    tasks.push_back({tensor, tensor, 0, 0});
    filled = 0;
  }
  tasks.back().last = tensor + 1;
  filled += count;
}

// Every element of every tensor, in stretches that any thread may take.
inline void cut_stretches(Table& table) {
  const int64_t stretch = std::max(kStretch, (table.elements / kMostTasks + kTile - 1) / kTile * kTile);
  std::vector<Task>& tasks = table.tasks;
  int64_t filled = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(table.tensors.size()); ++i) {
    const int64_t count = table.tensors[i].count();
    if (count <= stretch) {
      add_small(tasks, i, count, filled);
      continue;
    }
    for (int64_t begin = 0; begin < count; begin += stretch) {
      tasks.push_back({i, i + 1, begin, std::min(begin + stretch, count)});
    }
  }
}

}  // namespace ingot
