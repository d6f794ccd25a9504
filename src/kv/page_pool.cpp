#include "kv/page_pool.h"

#include <algorithm>

#include "base/error.h"

namespace synod {

constexpr int64_t kMaxSlabPages = 64;  // small models need no megabytes

void PagePool::prepare(int64_t n_pages, int64_t slab_bytes, const Allocator& allocator) {
  while (static_cast<int64_t>(free_.size()) < n_pages) {
    const int64_t missing = n_pages - static_cast<int64_t>(free_.size());
    const int64_t in_slab = std::clamp<int64_t>(slab_bytes / page_bytes_, 1, kMaxSlabPages);
    // One allocation for a long prompt, a slab ahead of need for single tokens.
    const int64_t n_new = std::max(missing, in_slab);
    Buffer slab = allocator(n_new * page_bytes_);
    SYNOD_ASSERT(slab.data() != nullptr && slab.bytes() >= n_new * page_bytes_);
    free_.reserve(free_.size() + static_cast<size_t>(n_new));
    slabs_.push_back(std::move(slab));
    for (int64_t i = n_new - 1; i >= 0; --i) free_.push_back(slabs_.back().data() + i * page_bytes_);
    slab_bytes_ += n_new * page_bytes_;
  }
}

std::byte* PagePool::take() {
  SYNOD_ASSERT(!free_.empty());
  std::byte* page = free_.back();
  free_.pop_back();
  return page;
}

}  // namespace synod
