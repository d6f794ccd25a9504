// The cache of one model: pages per row group, page tables per sequence, rollback. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "kv/cache_spec.h"
#include "ops/cache_rows.h"

namespace synod {

using SequenceId = int32_t;

// Tables of the sequences of one forward call, in the order given to KvCache::view.
class KvView {
 public:
  // Rows of `group` (index in CacheSpec::groups) and model layer `layer`, which must own such rows.
  CacheRows rows(int group, int64_t layer) const;

 private:
  friend class KvCache;
  const CacheSpec* spec_ = nullptr;
  std::vector<std::vector<RowTable>> tables_;  // [group * layer index][sequence]
  std::vector<size_t> first_;                  // first entry of a group in tables_
};

class KvCache {
 public:
  using Allocator = std::function<Buffer(int64_t bytes)>;
  // `max_bytes` bounds the pages of all sequences; 0 = no bound. A null allocator makes a dry cache (null
  // pages).
  KvCache(CacheSpec spec, Allocator allocator, int64_t max_bytes = 0);
  ~KvCache();

  SequenceId create();
  void release(SequenceId sequence);
  int64_t length(SequenceId sequence) const;

  // Makes room for `n_tokens` after the current length; kNoMemory (and no change) when pages run out.
  void reserve(SequenceId sequence, int64_t n_tokens);
  // The reserved tokens are in: length grows, pages that left every window (with kRollbackSlack) are freed.
  void commit(SequenceId sequence, int64_t n_tokens);
  // Rolls back to `length` tokens. False (and no change) when rows that the shorter sequence needs are gone:
  // windowed groups keep kRollbackSlack tokens more than the window.
  [[nodiscard]] bool truncate(SequenceId sequence, int64_t length);

  KvView view(std::span<const SequenceId> sequences) const;

  const CacheSpec& spec() const { return spec_; }
  int64_t used_bytes() const;  // pages in use
  int64_t page_count() const;  // pages in use, all groups and layers

 private:
  struct Impl;
  CacheSpec spec_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod
