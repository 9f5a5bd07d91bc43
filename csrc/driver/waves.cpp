// A whole step of a two-pass optimizer: which thread takes what, and what is kept between the passes.
#include <algorithm>
#include <memory>
#include <new>

#include "step.h"

namespace ingot {
namespace {

// The memory needed between the passes is bounded by handling tensors in waves. A tensor of 10^9 elements is a wave of its own and
// needs 730 KB.
constexpr int64_t kWaveUnits = 1024;        // partial sums: 50 KB
constexpr int64_t kWaveElements = 1 << 19;  // 8 MB of float32 operands; see TwiceTaken
constexpr int64_t kKeptWave = 1 << 16;      // sums of rows: 512 KB
constexpr int64_t kKeptSmall = 1 << 13;     // sums of rows of one small tensor: 64 KB per thread

// Updates of a small tensor are kept as well: 128 KB per thread, which stay in the second-level cache. Computing them again
// takes longer. LAMB on LoRA shapes: 6.7 ms against 8.3.
constexpr int64_t kKeptUpdates = 1 << 15;

}  // namespace

void TwoPass::run_small(Stage& stage, int64_t index) const {
  const Tensor& t = tensor(index);
  if (t.count() == 0) return;
  double* kept = nullptr;
  float* updates = nullptr;
  const int64_t size = kept_size(index);
  // Memory is kept by the thread: freed and taken again for every tensor, it would be new pages each time. Without it the step
  // takes longer, that is all.
  if (size > 0 && size <= kKeptSmall) {
    thread_local const std::unique_ptr<double[]> memory(new (std::nothrow) double[kKeptSmall]);
    kept = memory.get();
  }
  if (t.direct && !t.wide && !table_.rounded_states && t.count() <= kKeptUpdates) {
    thread_local const std::unique_ptr<float[]> memory(new (std::nothrow) float[kKeptUpdates]);
    updates = memory.get();
  }
  const Part whole = unit_of(index, 0);
  const Partial partial = sum_unit(stage, whole, kept, updates);
  finish_unit(stage, whole, add_up(index, &partial), &partial, kept, updates);
}

std::shared_ptr<Workspace> TwoPass::make_workspace() const {
  auto workspace = std::make_shared<Workspace>();
  int64_t most_units = 0, most_kept = 0;
  Wave wave;
  const auto end_wave = [&] {
    most_units = std::max(most_units, wave.units);
    most_kept = std::max(most_kept, wave.kept);
    workspace->waves.push_back(std::move(wave));
    wave = {};
  };
  int64_t filled = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(table_.tensors.size()); ++i) {
    const int64_t units = units_of(i);
    if (units <= 1) {
      add_small(wave.small, i, tensor(i).count(), filled);
      wave.elements += tensor(i).count();
      continue;
    }
    const int64_t size = kept_size(i) <= kKeptWave ? kept_size(i) : 0;
    if (wave.units > 0 &&
        (wave.units + units > kWaveUnits || wave.kept + size > kKeptWave || wave.elements + tensor(i).count() > kWaveElements)) {
      end_wave();
    }
    wave.large.push_back({i, wave.units, size > 0 ? wave.kept : -1, {}});
    wave.units += units;
    wave.kept += size;
    wave.elements += tensor(i).count();
  }
  end_wave();
  workspace->partials.resize(most_units);
  workspace->kept.resize(most_kept);
  workspace->units = TwiceTaken(most_units);
  return workspace;
}

void TwoPass::run() const {
  for (Wave& wave : table_.workspace->waves) run_wave(wave, *table_.workspace);
}

void TwoPass::run_wave(Wave& wave, Workspace& workspace) const {
  std::vector<Partial>& partials = workspace.partials;
  TwiceTaken& units = workspace.units;
  const auto find = [&](int64_t unit) -> Large& {
    const auto after = std::upper_bound(wave.large.begin(), wave.large.end(), unit,
                                        [](int64_t number, const Large& large) { return number < large.first_unit; });
    return *(after - 1);
  };
  const auto kept = [&](const Large& large) { return large.kept < 0 ? nullptr : &workspace.kept[large.kept]; };
  // Large units first: the small tensors at the end even out the threads.
  const int64_t small = static_cast<int64_t>(wave.small.size());
  share(wave.units + small, wave.elements, [&](int64_t number) {
    Stage stage(table_, kernels_);
    if (number < wave.units) {
      const Large& large = find(number);
      units.take(number);
      partials[number] = sum_unit(stage, unit_of(large.tensor, number - large.first_unit), kept(large), nullptr);
      return;
    }
    const Task& task = wave.small[number - wave.units];
    for (int64_t i = task.tensor; i < task.last; ++i) run_small(stage, i);
  });
  for (Large& large : wave.large) large.totals = add_up(large.tensor, &partials[large.first_unit]);
  on_threads(wave.units, wave.elements, [&](int64_t) {
    Stage stage(table_, kernels_);
    units.take_again(wave.units, [&](int64_t number) {
      const Large& large = find(number);
      const Part unit = unit_of(large.tensor, number - large.first_unit);
      finish_unit(stage, unit, large.totals, &partials[large.first_unit], kept(large), nullptr);
    });
  });
}

void schedule(Table& table, const Kernels& kernels) {
  table.elements = 0;
  for (const Tensor& tensor : table.tensors) table.elements += tensor.count();
  cut_stretches(table);
  table.partials = std::make_unique<double[]>(table.tasks.size());
  if (table.variant >= 0 && kernels.variants[table.variant].two_pass) {
    table.workspace = TwoPass(table, kernels, StepScalars{}).make_workspace();
  }
}

void run_jobs(const Job* begin, const Job* end, const Kernels& kernels) {
  if (begin == end) return;
  if (!kernels.variants[begin->table->variant].two_pass) return run_elementwise(begin, end, kernels);
  for (const Job* job = begin; job != end; ++job) TwoPass(*job->table, kernels, *job->scalars).run();
}

}  // namespace ingot
