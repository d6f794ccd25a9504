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
  // All of them, [group * layer index][sequence].
  std::span<const std::vector<RowTable>> tables() const { return tables_; }

 private:
  friend class KvCache;
  const CacheSpec* spec_ = nullptr;
  std::vector<std::vector<RowTable>> tables_;  // [group * layer index][sequence]
  std::vector<size_t> first_;                  // first entry of a group in tables_
};

// A page of a group holds the rows of all its layers, layer after layer. Full pages are immutable; a page
// that several own is copied before one of them writes to it.
using PageId = int32_t;

// Pages first, first + 1, ... of one group. Whoever keeps a run owns one reference to each of its pages.
struct PageRun {
  int64_t first = 0;
  std::vector<PageId> pages;
  int64_t end() const { return first + static_cast<int64_t>(pages.size()); }
};

class KvCache {
 public:
  using Allocator = std::function<Buffer(int64_t bytes)>;
  // `max_bytes` bounds the pages of all sequences and runs; 0 = no bound. A null allocator makes a dry cache
  // (null pages).
  KvCache(CacheSpec spec, Allocator allocator, int64_t max_bytes = 0);
  ~KvCache();

  SequenceId create();
  void release(SequenceId sequence);
  int64_t length(SequenceId sequence) const;
  // A second sequence with the same tokens. Shares all pages until one of the two writes.
  SequenceId fork(SequenceId sequence);

  // Makes room for `n_tokens` after the current length, in pages nobody else reads; kNoMemory (and no change)
  // when pages run out.
  void reserve(SequenceId sequence, int64_t n_tokens);
  // The reserved tokens are in: length grows, pages that left every window (with kRollbackSlack) are freed.
  // Reserved room that is not used stays reserved: rejected drafts need no other rollback.
  void commit(SequenceId sequence, int64_t n_tokens);
  // The two halves of commit, for who wants to keep pages of a boundary that was crossed.
  void grow(SequenceId sequence, int64_t n_tokens);
  void trim(SequenceId sequence);
  // Rolls back to `length` tokens. False (and no change) when rows that the shorter sequence needs are gone:
  // windowed groups keep kRollbackSlack tokens more than the window.
  [[nodiscard]] bool truncate(SequenceId sequence, int64_t length);

  // References to the pages of [first, end) of `group`; empty when one of them is not there.
  PageRun share(SequenceId sequence, int group, int64_t first, int64_t end);
  PageRun share(int group, const PageRun& run);
  int64_t first_page(SequenceId sequence, int group) const;  // the oldest live page
  void drop(int group, PageRun& run);                        // leaves it empty
  // A sequence of `length` tokens that owns `runs` (one per group, moved from; empty where the continuation
  // reads nothing). It cannot be rolled back below `floor`: rows before it may be missing.
  SequenceId adopt(int64_t length, std::vector<PageRun> runs, int64_t floor);
  int64_t floor(SequenceId sequence) const;
  // `n` new pages of undefined content, to be filled through data(). kNoMemory as reserve().
  PageRun allocate(int group, int64_t first, int64_t n);
  std::span<std::byte> data(int group, PageId page) const;  // [n_layers, page_bytes], of the backend
  // From host memory of the same size.
  void copy_in(int group, PageId page, std::span<const std::byte> from);
  bool is_shared(int group, PageId page) const;  // by two owners or more

  // Called when the bound is hit: frees some pages (drops runs) and returns true, or false when there are
  // none.
  void set_pressure(std::function<bool()> pressure);
  // Copies between pages; default memcpy. Device caches give their own.
  using Copy = std::function<void(std::byte* to, const std::byte* from, int64_t bytes)>;
  void set_copy(Copy copy);
  const Copy& copy() const;

  KvView view(std::span<const SequenceId> sequences) const;

  const CacheSpec& spec() const { return spec_; }
  int64_t used_bytes() const;  // pages in use, shared ones once
  int64_t live_bytes() const;  // of them, those that a sequence owns
  int64_t page_count() const;  // the same in pages, all groups and layers
  int64_t max_bytes() const;   // 0 = no bound

 private:
  struct Impl;
  CacheSpec spec_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod
