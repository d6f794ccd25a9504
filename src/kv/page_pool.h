// Pages of one row group, cut from slabs. Freed pages are reused; slabs live as long as the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/buffer.h"

namespace synod {

class PagePool {
 public:
  using Allocator = std::function<Buffer(int64_t bytes)>;
  explicit PagePool(int64_t page_bytes) : page_bytes_(page_bytes) {}

  // Gets pages until at least `n_pages` are free. A slab holds at most `slab_bytes` (but one page at least).
  // Whatever the allocator throws leaves the pool usable.
  void prepare(int64_t n_pages, int64_t slab_bytes, const Allocator& allocator);
  std::byte* take();  // after prepare()
  void give_back(std::byte* page) { free_.push_back(page); }

  int64_t page_bytes() const { return page_bytes_; }
  int64_t slab_bytes() const { return slab_bytes_; }  // allocated so far

 private:
  int64_t page_bytes_;
  int64_t slab_bytes_ = 0;
  std::vector<Buffer> slabs_;
  std::vector<std::byte*> free_;
};

}  // namespace synod
