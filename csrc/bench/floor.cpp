// The memory floor of the benchmark; compiled once, because waiting for memory takes as long with any instruction set.
#include "floor.h"

#include <algorithm>
#include <vector>

#include "driver/schedule.h"
#include "loops/kernels.h"
#include "python/interpreter.h"
#include "python/tensors.h"

namespace ingot {
namespace {

constexpr int kMostReads = 2, kMostWrites = 4;

// The tensors of one parameter, as 32-bit words.
struct Streams {
  const uint32_t* read[kMostReads];
  uint32_t* write[kMostWrites];
  int64_t words;
};

void prefetch(const uint32_t* stream, int64_t i) {
  // As an integer: it may point past the end of the tensor, which a prefetch does not mind.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(stream + i) + kAhead));
}

// The mask is 0, but the compiler cannot know it. What is written must depend on every word read: a load whose value does not
// matter would not be made.
template <int kReads, int kWrites>
void touch(const Streams& streams, int64_t begin, int64_t end, uint32_t mask) {
  const Streams s = streams;
  const auto word = [&](int64_t i) {
    uint32_t mixed = ~0u;
    for (int k = 0; k < kReads; ++k) mixed ^= s.read[k][i];
    for (int k = 0; k < kWrites; ++k) s.write[k][i] ^= mixed & mask;
  };
  int64_t i = begin;
  const bool ahead = kReads + kWrites > kFewStreams || !reads_few_ahead;
  for (; i + kPrefetchStep <= end; i += kPrefetchStep) {
    if (ahead) {
      for (int k = 0; k < kReads; ++k) prefetch(s.read[k], i);
      for (int k = 0; k < kWrites; ++k) prefetch(s.write[k], i);
    }
#pragma GCC ivdep
    for (int64_t j = i; j < i + kPrefetchStep; ++j) word(j);
  }
  for (; i < end; ++i) word(i);
}

using Touch = void (*)(const Streams&, int64_t begin, int64_t end, uint32_t mask);

template <int kReads>
Touch touch_for(int64_t writes) {
  constexpr Touch all[] = {touch<kReads, 1>, touch<kReads, 2>, touch<kReads, 3>, touch<kReads, 4>};
  return all[writes - 1];
}

Touch touch_for(int64_t reads, int64_t writes) {
  return reads == 0 ? touch_for<0>(writes) : reads == 1 ? touch_for<1>(writes) : touch_for<2>(writes);
}

// Adds the k-th of all lists to the streams; false with an error set.
bool add_list(PyObject* list, Py_ssize_t k, Py_ssize_t reads, std::vector<Streams>& streams) {
  Table table;
  if (!fill_single(table, list, kParam)) return false;
  if (k == 0) streams.resize(table.tensors.size());
  if (table.tensors.size() != streams.size() || !table.views.empty()) {
    PyErr_SetString(PyExc_ValueError, "expected lists of the same length, of dense tensors");
    return false;
  }
  for (size_t i = 0; i < streams.size(); ++i) {
    const Tensor& tensor = table.tensors[i];
    const int64_t words = tensor.count() * kItemSize[static_cast<int>(tensor.dtype[kParam])] / 4;
    streams[i].words = k == 0 ? words : std::min(words, streams[i].words);
    uint32_t* data = static_cast<uint32_t*>(tensor.data[kParam]);
    if (k < reads) streams[i].read[k] = data;
    else streams[i].write[k - reads] = data;
  }
  return true;
}

}  // namespace

PyObject* floor(PyObject*, PyObject* arguments) {
  PyObject *reads, *writes;
  unsigned mask;
  if (!PyArg_ParseTuple(arguments, "O!O!I", &PyList_Type, &reads, &PyList_Type, &writes, &mask)) return nullptr;
  const Py_ssize_t read_count = PyList_Size(reads), write_count = PyList_Size(writes);
  if (torch.exchange == nullptr || read_count > kMostReads || write_count < 1 || write_count > kMostWrites) {
    PyErr_SetString(PyExc_ValueError, "expected up to 2 lists to read and 1 to 4 lists to write");
    return nullptr;
  }
  std::vector<Streams> streams;
  for (Py_ssize_t k = 0; k < read_count + write_count; ++k) {
    PyObject* list = k < read_count ? PyList_GetItem(reads, k) : PyList_GetItem(writes, k - read_count);
    if (!add_list(list, k, read_count, streams)) return nullptr;
  }
  struct Piece {
    const Streams* streams;
    int64_t begin, end;
  };
  std::vector<Piece> pieces;
  int64_t total = 0;
  for (const Streams& each : streams) {
    for (int64_t begin = 0; begin < each.words; begin += kStretch) {
      pieces.push_back({&each, begin, std::min(begin + kStretch, each.words)});
    }
    total += each.words;
  }
  const Touch touch = touch_for(read_count, write_count);
  without_lock([&] {
    share(static_cast<int64_t>(pieces.size()), total, [&](int64_t number) {
      const Piece& piece = pieces[number];
      touch(*piece.streams, piece.begin, piece.end, mask);
    });
  });
  Py_RETURN_NONE;
}

}  // namespace ingot
