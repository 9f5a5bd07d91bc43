// What the quick path reads last: types, layouts and addresses of all operands, and whether they share memory.
#include <algorithm>

#include "quick.h"
#include "tensors.h"

namespace ingot {
namespace {

PyObject* operand_of(const RememberedBucket& bucket, const Live& live, int64_t i, int k) {
  if (k == 0) return live.params[bucket.ordinals[i]].get();
  if (k == 1) return live.grads[bucket.ordinals[i]].get();
  return find(live.slots[bucket.positions[i]].get(), bucket.names[k - 2]);
}

// Whether no operand that may be a lazily negated view is one.
bool are_positive(const Plan& plan) {
  return std::all_of(plan.buckets.begin(), plan.buckets.end(), [&](const auto& bucket) {
    return std::all_of(bucket->unsure.begin(), bucket->unsure.end(), [&](const auto& which) {
      PyObject* object = operand_of(*bucket, plan.live, which.first, which.second);
      return object != nullptr && is_positive_plain(object);
    });
  });
}

// Replaces the address of one operand, if all else about the tensor is as it was; `known` moves on to the next operand. `elsewhere`
// says whether its address was another.
bool read_operand(PyObject* object, const int64_t*& known, void** data, bool* elsewhere) {
  DLTensor t;
  if (object == nullptr || !describe_quickly(object, &t)) return false;
  if (t.device.device_type != kDLCPU || t.strides == nullptr) return false;
  if (known[0] != (t.dtype.code << 8 | t.dtype.bits) || known[1] != t.ndim || t.dtype.lanes != 1) return false;
  const int64_t bytes = known[2];
  known += 3;
  int64_t different = 0;
  for (int d = 0; d < t.ndim; ++d) different |= (t.shape[d] ^ known[d]) | (t.strides[d] ^ known[t.ndim + d]);
  known += 2 * t.ndim;
  void* const address = static_cast<char*>(t.data) + t.byte_offset;
  *elsewhere = address != *data;
  *data = address;
  const bool aligned = (reinterpret_cast<uintptr_t>(address) & (t.dtype.bits / 8 - 1)) == 0;  // a power of two
  return different == 0 && aligned && (t.data != nullptr || bytes == 0);
}

// The addresses of all operands of a bucket; those that are written and were found elsewhere are added to `moved`.
bool read_operands(RememberedBucket& bucket, Plan& plan, std::vector<Owned>& moved) {
  const int operands = operand_count(bucket.table);
  int numbers[kOperands];
  for (int k = 0; k < operands; ++k) numbers[k] = operand_number(bucket.table, k);
  const int64_t* known = bucket.layout.data();
  for (int64_t i = 0; i < bucket.size(); ++i) {
    Tensor& tensor = bucket.table.tensors[i];
    for (int k = 0; k < operands; ++k) {
      PyObject* object = operand_of(bucket, plan.live, i, k);
      if (k > 1) plan.live.states.push_back(Owned::share(object));
      bool elsewhere = false;
      if (!read_operand(object, known, &tensor.data[numbers[k]], &elsewhere)) return false;
      if (!elsewhere) continue;
      (k == 1 ? plan.read_moved : plan.written_moved) = true;
      if (k != 1) moved.push_back(Owned::share(object));
    }
  }
  return true;
}

// Calls visit(operand, extent) for every operand of every tensor that has elements.
template <class Visit>
void for_extents(const Plan& plan, Visit visit) {
  for (const auto& bucket : plan.buckets) {
    const int64_t* known = bucket->layout.data();
    for (const Tensor& tensor : bucket->table.tensors) {
      for (int k = 0; k < operand_count(bucket->table); ++k) {
        const int operand = operand_number(bucket->table, k);
        const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data[operand]);
        if (known[2] > 0) visit(operand, std::make_pair(begin, begin + known[2]));
        known += 3 + 2 * known[1];
      }
    }
  }
}

// Whether what is written shares memory with anything. Parameters and states mostly stay where they are: only if one has moved
// are they sorted again, and only if one or a gradient has moved are gradients compared with them.
bool overlaps(Plan& plan) {
  if (plan.written_moved) {
    plan.written.clear();
    for_extents(plan, [&](int operand, const auto& extent) {
      if (operand != kGrad) plan.written.push_back(extent);
    });
    std::sort(plan.written.begin(), plan.written.end());
    const auto touch = [](const auto& a, const auto& b) { return b.first < a.second; };
    if (std::adjacent_find(plan.written.begin(), plan.written.end(), touch) != plan.written.end()) return true;
  }
  bool found = false;
  if (plan.written_moved || plan.read_moved) {
    for_extents(plan, [&](int operand, const auto& extent) {
      if (operand != kGrad || found) return;
      const auto after = std::lower_bound(plan.written.begin(), plan.written.end(), extent.second,
                                          [](const auto& written, uintptr_t end) { return written.first < end; });
      found = after != plan.written.begin() && (after - 1)->second > extent.first;
    });
  }
  if (!found) plan.written_moved = plan.read_moved = false;
  return found;
}

}  // namespace

bool read_addresses(Plan& plan) {
  if (!are_positive(plan)) return false;
  std::vector<Owned> moved;
  const auto read_all = [&] {
    plan.live.states.clear();
    return std::all_of(plan.buckets.begin(), plan.buckets.end(),
                       [&](const auto& bucket) { return read_operands(*bucket, plan, moved); });
  };
  if (!read_all()) return false;
  if (!moved.empty()) {
    // Somebody has replaced them. torch forbids to change an inference tensor, and a lazily negated view would be read with the
    // wrong sign. Other threads may run while torch is asked: then all are read again.
    const auto is_good = [](const Owned& each) { return !is_inference(each.get()) && is_positive_plain(each.get()); };
    if (!std::all_of(moved.begin(), moved.end(), is_good)) return false;
    moved.clear();
    if (!read_all() || !moved.empty()) return false;
  }
  return !overlaps(plan);
}

}  // namespace ingot
