// Every layer of a group keeps the same rows, so a sequence has one live range of pages per group.
#include "kv/kv_cache.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "kv/cache_geometry.h"
#include "kv/page_pool.h"

namespace synod {
namespace {

constexpr int64_t kSlabBytes = 4 << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 40;  // keeps all products below 2^63

using Pages = std::vector<std::byte*>;

struct GroupTables {
  std::vector<Pages> layers;  // [n_layers of the group][end]; null below `first`
  int64_t first = 0;          // live pages are [first, end)
  int64_t end = 0;
};

struct Sequence {
  std::vector<GroupTables> groups;
  int64_t length = 0;    // committed tokens
  int64_t reserved = 0;  // tokens after them that have room
};

struct Range {
  int64_t first = 0, end = 0;
  int64_t size() const { return end - first; }
};

}  // namespace

struct KvCache::Impl {
  const CacheSpec& spec;
  Allocator allocator;
  int64_t max_bytes;
  std::vector<PagePool> pools;  // one per group
  std::map<SequenceId, Sequence> sequences;
  SequenceId next_id = 0;
  int64_t used_bytes = 0;
  int64_t used_pages = 0;

  Impl(const CacheSpec& cache_spec, Allocator pages, int64_t bound)
      : spec(cache_spec), allocator(std::move(pages)), max_bytes(bound) {
    for (const RowGroup& group : spec.groups) {
      SYNOD_ASSERT(group.rows_per_page > 0 && group.row_bytes > 0);  // make_group was used
      pools.emplace_back(group.page_bytes());
    }
  }

  bool dry() const { return allocator == nullptr; }

  Sequence& at(SequenceId id) {
    const auto it = sequences.find(id);
    SYNOD_ASSERT(it != sequences.end());
    return it->second;
  }

  int64_t n_layers(size_t g) const { return static_cast<int64_t>(spec.groups[g].layers.size()); }

  // Pages of group `g` that a reservation up to `n_tokens` adds.
  Range pages_to_add(const Sequence& s, size_t g, int64_t n_tokens) const {
    const RowGroup& group = spec.groups[g];
    const GroupTables& tables = s.groups[g];
    const int64_t end = synod::page_count(group, n_tokens);
    const bool empty = tables.first == tables.end;
    const int64_t first = empty ? first_page_read(group, s.length) : tables.end;
    return {.first = first, .end = std::max(first, end)};
  }

  void check_bound(int64_t new_bytes, const Sequence& s, int64_t n_tokens) const {
    if (max_bytes == 0 || used_bytes + new_bytes <= max_bytes) return;
    fail(Error::Kind::kNoMemory,
         "cache: {} more tokens after {} need {} more, {} of {} are in use; shorten the prompt or allow more "
         "cache memory",
         n_tokens, s.length, human_bytes(new_bytes), human_bytes(used_bytes), human_bytes(max_bytes));
  }

  // Slabs run ahead of need, but not past the bound.
  int64_t slab_limit() const {
    if (max_bytes == 0) return kSlabBytes;
    int64_t allocated = 0;
    for (const PagePool& pool : pools) allocated += pool.slab_bytes();
    return std::clamp<int64_t>(max_bytes - allocated, 0, kSlabBytes);
  }

  void add_pages(GroupTables& tables, size_t g, Range added) {
    if (added.size() == 0) return;
    if (tables.first == tables.end) tables.first = added.first;
    for (Pages& pages : tables.layers) {
      pages.resize(static_cast<size_t>(added.end), nullptr);
      if (dry()) continue;
      for (int64_t p = added.first; p < added.end; ++p) pages[static_cast<size_t>(p)] = pools[g].take();
    }
    tables.end = added.end;
    count(g, added.size());
  }

  // Returns the live pages of [first, end) to their pool.
  void free_pages(GroupTables& tables, size_t g, Range freed) {
    if (freed.size() <= 0) return;
    for (Pages& pages : tables.layers) {
      for (int64_t p = freed.first; p < freed.end; ++p) {
        std::byte*& page = pages[static_cast<size_t>(p)];
        if (!dry()) pools[g].give_back(page);
        page = nullptr;
      }
    }
    count(g, -freed.size());
  }

  void count(size_t g, int64_t pages_per_layer) {
    used_pages += pages_per_layer * n_layers(g);
    used_bytes += pages_per_layer * n_layers(g) * pools[g].page_bytes();
  }

  void keep_from(GroupTables& tables, size_t g, int64_t first) {
    const int64_t kept = std::min(std::max(first, tables.first), tables.end);
    free_pages(tables, g, {.first = tables.first, .end = kept});
    tables.first = kept;
  }

  void keep_until(GroupTables& tables, size_t g, int64_t end) {
    const int64_t kept = std::max(std::min(end, tables.end), tables.first);
    free_pages(tables, g, {.first = kept, .end = tables.end});
    tables.end = kept;
    for (Pages& pages : tables.layers) pages.resize(static_cast<size_t>(kept));
  }
};

KvCache::KvCache(CacheSpec spec, Allocator allocator, int64_t max_bytes) : spec_(std::move(spec)) {
  SYNOD_ASSERT(max_bytes >= 0);
  impl_ = std::make_unique<Impl>(spec_, std::move(allocator), max_bytes);
}

KvCache::~KvCache() = default;

SequenceId KvCache::create() {
  const SequenceId id = impl_->next_id++;
  Sequence& s = impl_->sequences[id];
  s.groups.resize(spec_.groups.size());
  for (size_t g = 0; g < s.groups.size(); ++g) s.groups[g].layers.resize(spec_.groups[g].layers.size());
  return id;
}

void KvCache::release(SequenceId sequence) {
  Sequence& s = impl_->at(sequence);
  for (size_t g = 0; g < s.groups.size(); ++g) impl_->keep_until(s.groups[g], g, 0);
  impl_->sequences.erase(sequence);
}

int64_t KvCache::length(SequenceId sequence) const { return impl_->at(sequence).length; }

void KvCache::reserve(SequenceId sequence, int64_t n_tokens) {
  Sequence& s = impl_->at(sequence);
  SYNOD_ASSERT(n_tokens >= 0 && n_tokens <= kMaxTokens && s.length + n_tokens <= kMaxTokens);
  std::vector<Range> added;
  int64_t new_bytes = 0;
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    added.push_back(impl_->pages_to_add(s, g, s.length + n_tokens));
    new_bytes += added[g].size() * impl_->n_layers(g) * spec_.groups[g].page_bytes();
  }
  impl_->check_bound(new_bytes, s, n_tokens);
  if (!impl_->dry()) {
    for (size_t g = 0; g < added.size(); ++g) {
      impl_->pools[g].prepare(added[g].size() * impl_->n_layers(g), impl_->slab_limit(), impl_->allocator);
    }
  }
  for (size_t g = 0; g < added.size(); ++g) impl_->add_pages(s.groups[g], g, added[g]);
  s.reserved = std::max(s.reserved, n_tokens);
}

void KvCache::commit(SequenceId sequence, int64_t n_tokens) {
  Sequence& s = impl_->at(sequence);
  SYNOD_ASSERT(n_tokens >= 0 && n_tokens <= s.reserved);
  s.length += n_tokens;
  s.reserved -= n_tokens;
  for (size_t g = 0; g < s.groups.size(); ++g) {
    impl_->keep_from(s.groups[g], g, first_page_kept(spec_.groups[g], s.length));
  }
}

bool KvCache::truncate(SequenceId sequence, int64_t length) {
  Sequence& s = impl_->at(sequence);
  SYNOD_ASSERT(length >= 0 && length <= s.length);
  for (size_t g = 0; g < s.groups.size(); ++g) {
    const RowGroup& group = spec_.groups[g];
    const bool reads_any = first_row_read(group, length) < row_count(group, length);
    if (reads_any && first_page_read(group, length) < s.groups[g].first) return false;
  }
  for (size_t g = 0; g < s.groups.size(); ++g) {
    impl_->keep_until(s.groups[g], g, synod::page_count(spec_.groups[g], length));
  }
  s.length = length;
  s.reserved = 0;
  return true;
}

KvView KvCache::view(std::span<const SequenceId> sequences) const {
  KvView view;
  view.spec_ = &spec_;
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    view.first_.push_back(view.tables_.size());
    for (size_t layer = 0; layer < spec_.groups[g].layers.size(); ++layer) {
      std::vector<RowTable>& tables = view.tables_.emplace_back();
      if (impl_->dry()) continue;
      tables.reserve(sequences.size());
      for (const SequenceId id : sequences) {
        tables.push_back(RowTable{.pages = impl_->at(id).groups[g].layers[layer]});
      }
    }
  }
  return view;
}

int64_t KvCache::used_bytes() const { return impl_->used_bytes; }
int64_t KvCache::page_count() const { return impl_->used_pages; }

CacheRows KvView::rows(int group, int64_t layer) const {
  SYNOD_ASSERT(spec_ != nullptr && group >= 0 && static_cast<size_t>(group) < spec_->groups.size());
  const auto g = static_cast<size_t>(group);
  const RowGroup& rows = spec_->groups[g];
  const auto it = std::lower_bound(rows.layers.begin(), rows.layers.end(), layer);
  SYNOD_ASSERT(it != rows.layers.end() && *it == layer);
  CacheRows result;
  result.name = rows.name;
  result.type = rows.type;
  result.row_dim = rows.row_dim;
  result.row_bytes = rows.row_bytes;
  result.rows_per_page = rows.rows_per_page;
  result.sequences = tables_[first_[g] + static_cast<size_t>(it - rows.layers.begin())];
  return result;
}

}  // namespace synod
