// Where the elements of a tensor lie in memory, in the order in which a step goes through them.
#pragma once

#include <cstdint>
#include <vector>

namespace ingot {

constexpr int kMaxDims = 64;  // of a tensor, as in torch

struct Dim {
  int64_t size;
  int64_t stride;  // in elements
};

// From the outermost to the innermost dimension; neighbours that continue each other are merged, so a tensor whose
// elements follow each other in memory has one dimension of stride 1 (or none).
using View = std::vector<Dim>;

bool is_consecutive(const View& view);

// The order in which to go through a tensor: that of its memory, but dimension 0 first if `rows_first`.
std::vector<int> memory_order(const int64_t* shape, const int64_t* strides, int ndim, bool rows_first);

View make_view(const int64_t* shape, const int64_t* strides, const std::vector<int>& order);

// Whether two indices may stand for the same element, as in an expanded tensor.
bool may_overlap(const View& view);

// Copy elements [begin, begin + count) of a view into consecutive memory, and back.
void gather(const void* data, const View& view, int64_t item_size, int64_t begin, int64_t count, void* packed);
void scatter(const void* packed, const View& view, int64_t item_size, int64_t begin, int64_t count, void* data);

// The offsets of those elements.
void list_offsets(const View& view, int64_t begin, int64_t count, int64_t* offsets);

}  // namespace ingot
