#include "cuda/scratch.h"

#include <bit>

namespace synod::cuda {

Scratch::~Scratch() {
  for (const auto& [data, size] : sizes_) device_.release(data);
}

std::byte* Scratch::take(int64_t bytes) {
  // Sizes in steps of an eighth of a power of two, so that steps of similar shape share buffers.
  constexpr int64_t kSmallest = 4096;
  if (bytes < kSmallest) bytes = kSmallest;
  const auto grain = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes))) / 8;
  bytes = (bytes + grain - 1) / grain * grain;
  const auto it = free_.lower_bound(bytes);
  if (it != free_.end() && it->first <= 2 * bytes) {
    std::byte* data = it->second;
    free_.erase(it);
    return data;
  }
  std::byte* data = device_.allocate(bytes);
  sizes_[data] = bytes;
  total_ += bytes;
  return data;
}

void Scratch::give_back(std::byte* data) { free_.emplace(sizes_.at(data), data); }

}  // namespace synod::cuda
