// Every layer of a group keeps the same rows, so a page holds all of them and a sequence has one live range
// of pages per group.
#include "kv/kv_cache.h"

#include <algorithm>
#include <cstring>
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
constexpr PageId kNoPage = -1;

struct Page {
  std::byte* data = nullptr;  // null in a dry cache
  int32_t references = 0;     // all owners
  int32_t in_sequences = 0;   // those that are sequences
};

// All pages of one group.
struct GroupPages {
  PagePool pool;
  int64_t n_layers;
  std::vector<Page> pages;
  std::vector<PageId> unused;  // ids without a page

  GroupPages(const RowGroup& group)
      : pool(group.page_bytes() * static_cast<int64_t>(group.layers.size())),
        n_layers(static_cast<int64_t>(group.layers.size())) {}
  Page& at(PageId id) { return pages[static_cast<size_t>(id)]; }
};

struct GroupTables {
  std::vector<PageId> ids;                      // [end]; kNoPage below `first`
  std::vector<std::vector<std::byte*>> layers;  // [n_layers of the group][end], what kernels read
  int64_t first = 0;                            // live pages are [first, end)
  int64_t end = 0;
};

struct Sequence {
  std::vector<GroupTables> groups;
  int64_t length = 0;    // committed tokens
  int64_t reserved = 0;  // tokens after them that have room
  int64_t floor = 0;     // shortest length it may be rolled back to
};

struct Range {
  int64_t first = 0, end = 0;
  int64_t size() const { return std::max<int64_t>(end - first, 0); }
};

// What a reservation does to one group.
struct Growth {
  Range added;   // new pages
  Range copied;  // live pages that will be written but are shared
  int64_t n_pages() const { return added.size() + copied.size(); }
};

}  // namespace

struct KvCache::Impl {
  const CacheSpec& spec;
  Allocator allocator;
  int64_t max_bytes;
  std::function<bool()> pressure;
  std::function<void(std::byte*, const std::byte*, int64_t)> copy = [](std::byte* to, const std::byte* from,
                                                                       int64_t bytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  };
  std::vector<GroupPages> groups;
  std::map<SequenceId, Sequence> sequences;
  SequenceId next_id = 0;
  int64_t used_bytes = 0;
  int64_t live_bytes = 0;  // of pages that a sequence owns
  int64_t used_pages = 0;  // of single layers

  Impl(const CacheSpec& cache_spec, Allocator pages, int64_t bound)
      : spec(cache_spec), allocator(std::move(pages)), max_bytes(bound) {
    for (const RowGroup& group : spec.groups) {
      SYNOD_ASSERT(group.rows_per_page > 0 && group.row_bytes > 0);  // make_group was used
      groups.emplace_back(group);
    }
  }

  bool dry() const { return allocator == nullptr; }

  Sequence& at(SequenceId id) {
    const auto it = sequences.find(id);
    SYNOD_ASSERT(it != sequences.end());
    return it->second;
  }

  std::pair<SequenceId, Sequence&> create() {
    const SequenceId id = next_id++;
    Sequence& s = sequences[id];
    s.groups.resize(spec.groups.size());
    for (size_t g = 0; g < s.groups.size(); ++g) s.groups[g].layers.resize(spec.groups[g].layers.size());
    return {id, s};
  }

  // A page with one reference; the pool was prepared.
  PageId take(size_t g) {
    GroupPages& group = groups[g];
    PageId id = 0;
    if (group.unused.empty()) {
      id = static_cast<PageId>(group.pages.size());
      group.pages.emplace_back();
    } else {
      id = group.unused.back();
      group.unused.pop_back();
    }
    group.at(id) = {.data = dry() ? nullptr : group.pool.take(), .references = 1, .in_sequences = 0};
    used_pages += group.n_layers;
    used_bytes += group.pool.page_bytes();
    return id;
  }

  void unref(size_t g, PageId id) {
    GroupPages& group = groups[g];
    Page& page = group.at(id);
    SYNOD_ASSERT(page.references > 0);
    if (--page.references > 0) return;
    if (!dry()) group.pool.give_back(page.data);
    page.data = nullptr;
    group.unused.push_back(id);
    used_pages -= group.n_layers;
    used_bytes -= group.pool.page_bytes();
  }

  void leave_sequence(size_t g, PageId id) {
    if (--groups[g].at(id).in_sequences == 0) live_bytes -= groups[g].pool.page_bytes();
  }

  // Replaces a page of a table; references are the caller's business.
  void set_page(GroupTables& tables, size_t g, int64_t p, PageId id) {
    PageId& place = tables.ids[static_cast<size_t>(p)];
    if (place != kNoPage) leave_sequence(g, place);
    if (id != kNoPage && groups[g].at(id).in_sequences++ == 0) live_bytes += groups[g].pool.page_bytes();
    place = id;
    std::byte* data = id == kNoPage ? nullptr : groups[g].at(id).data;
    const int64_t page_bytes = spec.groups[g].page_bytes();
    for (std::vector<std::byte*>& layer : tables.layers) {
      layer[static_cast<size_t>(p)] = data;
      if (data != nullptr) data += page_bytes;
    }
  }

  void resize(GroupTables& tables, int64_t end) {
    tables.end = end;
    tables.ids.resize(static_cast<size_t>(end), kNoPage);
    for (std::vector<std::byte*>& layer : tables.layers) layer.resize(static_cast<size_t>(end), nullptr);
  }

  // What a reservation up to `n_tokens` needs in group `g`.
  Growth growth(const Sequence& s, size_t g, int64_t n_tokens) {
    const RowGroup& group = spec.groups[g];
    const GroupTables& tables = s.groups[g];
    const int64_t end = synod::page_count(group, n_tokens);
    const bool empty = tables.first == tables.end;
    // Without live pages nothing before the open row is ever read.
    const int64_t first = empty ? s.length / group.tokens_per_row / group.rows_per_page : tables.end;
    Growth result{.added = {first, std::max(first, end)}, .copied = {}};
    // Rows before the open one are complete and never written again.
    const int64_t open_page = s.length / group.tokens_per_row / group.rows_per_page;
    const int64_t live = std::min(end, tables.end);
    int64_t copied_end = std::max(open_page, tables.first);
    const int64_t copied_first = copied_end;
    for (int64_t p = copied_first; p < live; ++p) {
      if (groups[g].at(tables.ids[static_cast<size_t>(p)]).references > 1) copied_end = p + 1;
    }
    result.copied = {copied_first, copied_end};
    return result;
  }

  std::vector<Growth> growths(const Sequence& s, int64_t n_tokens, int64_t& bytes) {
    std::vector<Growth> all;
    bytes = 0;
    for (size_t g = 0; g < spec.groups.size(); ++g) {
      all.push_back(growth(s, g, n_tokens));
      bytes += all[g].n_pages() * groups[g].pool.page_bytes();
    }
    return all;
  }

  bool fits(int64_t new_bytes) const { return max_bytes == 0 || used_bytes + new_bytes <= max_bytes; }

  // Slabs run ahead of need, but not past the bound.
  void prepare(size_t g, int64_t n_pages) {
    if (dry() || n_pages == 0) return;
    int64_t limit = kSlabBytes;
    if (max_bytes > 0) {
      int64_t allocated = 0;
      for (const GroupPages& group : groups) allocated += group.pool.slab_bytes();
      limit = std::clamp<int64_t>(max_bytes - allocated, 0, kSlabBytes);
    }
    groups[g].pool.prepare(n_pages, limit, allocator);
  }

  void keep_from(GroupTables& tables, size_t g, int64_t first) {
    const int64_t kept = std::min(std::max(first, tables.first), tables.end);
    for (int64_t p = tables.first; p < kept; ++p) {
      const PageId id = tables.ids[static_cast<size_t>(p)];
      set_page(tables, g, p, kNoPage);
      unref(g, id);
    }
    tables.first = kept;
  }

  void keep_until(GroupTables& tables, size_t g, int64_t end) {
    const int64_t kept = std::max(std::min(end, tables.end), tables.first);
    for (int64_t p = kept; p < tables.end; ++p) {
      leave_sequence(g, tables.ids[static_cast<size_t>(p)]);
      unref(g, tables.ids[static_cast<size_t>(p)]);
    }
    resize(tables, kept);
  }
};

KvCache::KvCache(CacheSpec spec, Allocator allocator, int64_t max_bytes) : spec_(std::move(spec)) {
  SYNOD_ASSERT(max_bytes >= 0);
  impl_ = std::make_unique<Impl>(spec_, std::move(allocator), max_bytes);
}

KvCache::~KvCache() = default;

void KvCache::set_pressure(std::function<bool()> pressure) { impl_->pressure = std::move(pressure); }
void KvCache::set_copy(Copy copy) { impl_->copy = std::move(copy); }
const KvCache::Copy& KvCache::copy() const { return impl_->copy; }

SequenceId KvCache::create() { return impl_->create().first; }

void KvCache::release(SequenceId sequence) {
  Sequence& s = impl_->at(sequence);
  for (size_t g = 0; g < s.groups.size(); ++g) impl_->keep_until(s.groups[g], g, 0);
  impl_->sequences.erase(sequence);
}

int64_t KvCache::length(SequenceId sequence) const { return impl_->at(sequence).length; }
int64_t KvCache::floor(SequenceId sequence) const { return impl_->at(sequence).floor; }

SequenceId KvCache::fork(SequenceId sequence) {
  std::vector<PageRun> runs;
  const int64_t n = length(sequence);
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    const GroupTables& tables = impl_->at(sequence).groups[g];
    const int64_t end = std::min(tables.end, synod::page_count(spec_.groups[g], n));
    runs.push_back(share(sequence, static_cast<int>(g), std::min(tables.first, end), end));
  }
  return adopt(n, std::move(runs), floor(sequence));
}

void KvCache::reserve(SequenceId sequence, int64_t n_tokens) {
  Impl& impl = *impl_;
  Sequence& s = impl.at(sequence);
  SYNOD_ASSERT(n_tokens >= 0 && n_tokens <= kMaxTokens && s.length + n_tokens <= kMaxTokens);
  int64_t new_bytes = 0;
  std::vector<Growth> all = impl.growths(s, s.length + n_tokens, new_bytes);
  while (!impl.fits(new_bytes)) {
    if (!impl.pressure || !impl.pressure()) {
      fail(Error::Kind::kNoMemory,
           "cache: {} more tokens after {} need {} more, {} of {} are in use; shorten the prompt or allow "
           "more "
           "cache memory",
           n_tokens, s.length, human_bytes(new_bytes), human_bytes(impl.used_bytes),
           human_bytes(impl.max_bytes));
    }
    all = impl.growths(s, s.length + n_tokens, new_bytes);  // what was shared may be ours alone now
  }
  for (size_t g = 0; g < all.size(); ++g) impl.prepare(g, all[g].n_pages());
  for (size_t g = 0; g < all.size(); ++g) {
    GroupTables& tables = s.groups[g];
    for (int64_t p = all[g].copied.first; p < all[g].copied.end; ++p) {
      const PageId old = tables.ids[static_cast<size_t>(p)];
      if (impl.groups[g].at(old).references == 1) continue;
      const PageId fresh = impl.take(g);
      if (!impl.dry()) {
        const int64_t bytes = impl.groups[g].pool.page_bytes();
        impl.copy(impl.groups[g].at(fresh).data, impl.groups[g].at(old).data, bytes);
      }
      impl.set_page(tables, g, p, fresh);
      impl.unref(g, old);
    }
    const Range added = all[g].added;
    if (added.size() == 0) continue;
    if (tables.first == tables.end) tables.first = added.first;
    impl.resize(tables, added.end);
    for (int64_t p = added.first; p < added.end; ++p) impl.set_page(tables, g, p, impl.take(g));
  }
  s.reserved = std::max(s.reserved, n_tokens);
}

void KvCache::grow(SequenceId sequence, int64_t n_tokens) {
  Sequence& s = impl_->at(sequence);
  SYNOD_ASSERT(n_tokens >= 0 && n_tokens <= s.reserved);
  s.length += n_tokens;
  s.reserved -= n_tokens;
}

void KvCache::trim(SequenceId sequence) {
  Sequence& s = impl_->at(sequence);
  for (size_t g = 0; g < s.groups.size(); ++g) {
    impl_->keep_from(s.groups[g], g, first_page_kept(spec_.groups[g], s.length));
  }
}

void KvCache::commit(SequenceId sequence, int64_t n_tokens) {
  grow(sequence, n_tokens);
  trim(sequence);
}

bool KvCache::truncate(SequenceId sequence, int64_t length) {
  Sequence& s = impl_->at(sequence);
  SYNOD_ASSERT(length >= 0 && length <= s.length);
  if (length < s.floor) return false;
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

PageRun KvCache::share(SequenceId sequence, int group, int64_t first, int64_t end) {
  const auto g = static_cast<size_t>(group);
  const GroupTables& tables = impl_->at(sequence).groups[g];
  PageRun run{.first = first, .pages = {}};
  if (first >= end || first < tables.first || end > tables.end) return run;
  run.pages.assign(tables.ids.begin() + first, tables.ids.begin() + end);
  for (const PageId id : run.pages) ++impl_->groups[g].at(id).references;
  return run;
}

PageRun KvCache::share(int group, const PageRun& run) {
  for (const PageId id : run.pages) ++impl_->groups[static_cast<size_t>(group)].at(id).references;
  return run;
}

int64_t KvCache::first_page(SequenceId sequence, int group) const {
  return impl_->at(sequence).groups[static_cast<size_t>(group)].first;
}

void KvCache::drop(int group, PageRun& run) {
  for (const PageId id : run.pages) impl_->unref(static_cast<size_t>(group), id);
  run.pages.clear();
}

SequenceId KvCache::adopt(int64_t length, std::vector<PageRun> runs, int64_t floor) {
  SYNOD_ASSERT(runs.size() == spec_.groups.size() && floor <= length);
  const auto [id, s] = impl_->create();
  s.length = length;
  s.floor = floor;
  for (size_t g = 0; g < runs.size(); ++g) {
    GroupTables& tables = s.groups[g];
    if (runs[g].pages.empty()) continue;
    impl_->resize(tables, runs[g].end());
    tables.first = runs[g].first;
    for (size_t i = 0; i < runs[g].pages.size(); ++i) {
      impl_->set_page(tables, g, runs[g].first + static_cast<int64_t>(i), runs[g].pages[i]);
    }
  }
  return id;
}

PageRun KvCache::allocate(int group, int64_t first, int64_t n) {
  Impl& impl = *impl_;
  const auto g = static_cast<size_t>(group);
  const int64_t bytes = n * impl.groups[g].pool.page_bytes();
  while (!impl.fits(bytes)) {
    if (impl.pressure && impl.pressure()) continue;
    fail(Error::Kind::kNoMemory, "cache: {} pages of {} need {}, {} of {} are in use", n,
         spec_.groups[g].name, human_bytes(bytes), human_bytes(impl.used_bytes), human_bytes(impl.max_bytes));
  }
  impl.prepare(g, n);
  PageRun run{.first = first, .pages = {}};
  for (int64_t i = 0; i < n; ++i) run.pages.push_back(impl.take(g));
  return run;
}

std::span<std::byte> KvCache::data(int group, PageId page) const {
  GroupPages& pages = impl_->groups[static_cast<size_t>(group)];
  std::byte* data = pages.at(page).data;
  return {data, data == nullptr ? 0 : static_cast<size_t>(pages.pool.page_bytes())};
}

void KvCache::copy_in(int group, PageId page, std::span<const std::byte> from) {
  const std::span<std::byte> to = data(group, page);
  SYNOD_ASSERT(to.size() == from.size());
  impl_->copy(to.data(), from.data(), static_cast<int64_t>(from.size()));
}

bool KvCache::is_shared(int group, PageId page) const {
  return impl_->groups[static_cast<size_t>(group)].at(page).references > 1;
}

KvView KvCache::view(std::span<const SequenceId> sequences) const {
  KvView view;
  view.spec_ = &spec_;
  std::vector<Sequence*> chosen;
  if (!impl_->dry()) {
    for (const SequenceId id : sequences) chosen.push_back(&impl_->at(id));
  }
  for (size_t g = 0; g < spec_.groups.size(); ++g) {
    view.first_.push_back(view.tables_.size());
    for (size_t layer = 0; layer < spec_.groups[g].layers.size(); ++layer) {
      std::vector<RowTable>& tables = view.tables_.emplace_back();
      tables.reserve(chosen.size());
      for (Sequence* s : chosen) tables.push_back(RowTable{.pages = s->groups[g].layers[layer]});
    }
  }
  return view;
}

int64_t KvCache::used_bytes() const { return impl_->used_bytes; }
int64_t KvCache::live_bytes() const { return impl_->live_bytes; }
int64_t KvCache::page_count() const { return impl_->used_pages; }
int64_t KvCache::max_bytes() const { return impl_->max_bytes; }

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
