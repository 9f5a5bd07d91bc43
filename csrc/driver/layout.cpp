// Views: merging dimensions, and copies between strided and consecutive memory.
#include "layout.h"

#include <algorithm>

namespace ingot {

bool is_consecutive(const View& view) { return view.empty() || (view.size() == 1 && view[0].stride == 1); }

std::vector<int> memory_order(const int64_t* shape, const int64_t* strides, int ndim, bool rows_first) {
  std::vector<int> order;
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] != 1) order.push_back(d);
  }
  const bool fixed = rows_first && !order.empty() && order[0] == 0;
  std::stable_sort(order.begin() + (fixed ? 1 : 0), order.end(), [&](int a, int b) { return strides[a] > strides[b]; });
  return order;
}

View make_view(const int64_t* shape, const int64_t* strides, const std::vector<int>& order) {
  View view;
  for (const int d : order) {
    if (!view.empty() && view.back().stride == shape[d] * strides[d]) {
      view.back() = {view.back().size * shape[d], strides[d]};
    } else {
      view.push_back({shape[d], strides[d]});
    }
  }
  return view;
}

bool may_overlap(const View& view) {
  View by_stride = view;
  std::sort(by_stride.begin(), by_stride.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t extent = 0;  // the largest offset that the dimensions seen so far can reach
  for (const Dim& dim : by_stride) {
    if (dim.stride <= extent) return true;
    extent += (dim.size - 1) * dim.stride;
  }
  return false;
}

namespace {

// Calls `run(offset, stride, length)` for each stretch of the innermost dimension.
template <class Run>
void for_stretches(const View& view, int64_t begin, int64_t count, Run run) {
  if (view.empty()) {
    if (count > 0) run(int64_t{0}, int64_t{1}, count);
    return;
  }
  const int dims = static_cast<int>(view.size());
  int64_t at[kMaxDims];
  int64_t rest = begin, offset = 0;
  for (int d = dims - 1; d >= 0; --d) {
    at[d] = rest % view[d].size;
    rest /= view[d].size;
    offset += at[d] * view[d].stride;
  }
  const Dim inner = view.back();
  while (count > 0) {
    const int64_t length = std::min(inner.size - at[dims - 1], count);
    run(offset, inner.stride, length);
    count -= length;
    at[dims - 1] += length;
    offset += length * inner.stride;
    for (int d = dims - 1; d > 0 && at[d] == view[d].size; --d) {
      offset += view[d - 1].stride - view[d].size * view[d].stride;
      at[d] = 0;
      ++at[d - 1];
    }
  }
}

template <class T>
void gather_items(const T* data, const View& view, int64_t begin, int64_t count, T* packed) {
  for_stretches(view, begin, count, [&](int64_t offset, int64_t stride, int64_t length) {
    for (int64_t i = 0; i < length; ++i) packed[i] = data[offset + i * stride];
    packed += length;
  });
}

template <class T>
void scatter_items(const T* packed, const View& view, int64_t begin, int64_t count, T* data) {
  for_stretches(view, begin, count, [&](int64_t offset, int64_t stride, int64_t length) {
    for (int64_t i = 0; i < length; ++i) data[offset + i * stride] = packed[i];
    packed += length;
  });
}

}  // namespace

void gather(const void* data, const View& view, int64_t item_size, int64_t begin, int64_t count, void* packed) {
  switch (item_size) {
    case 2:
      return gather_items(static_cast<const uint16_t*>(data), view, begin, count, static_cast<uint16_t*>(packed));
    case 4:
      return gather_items(static_cast<const uint32_t*>(data), view, begin, count, static_cast<uint32_t*>(packed));
    default:
      return gather_items(static_cast<const uint64_t*>(data), view, begin, count, static_cast<uint64_t*>(packed));
  }
}

void scatter(const void* packed, const View& view, int64_t item_size, int64_t begin, int64_t count, void* data) {
  switch (item_size) {
    case 2:
      return scatter_items(static_cast<const uint16_t*>(packed), view, begin, count, static_cast<uint16_t*>(data));
    case 4:
      return scatter_items(static_cast<const uint32_t*>(packed), view, begin, count, static_cast<uint32_t*>(data));
    default:
      return scatter_items(static_cast<const uint64_t*>(packed), view, begin, count, static_cast<uint64_t*>(data));
  }
}

void list_offsets(const View& view, int64_t begin, int64_t count, int64_t* offsets) {
  for_stretches(view, begin, count, [&](int64_t offset, int64_t stride, int64_t length) {
    for (int64_t i = 0; i < length; ++i) offsets[i] = offset + i * stride;
    offsets += length;
  });
}

}  // namespace ingot
