// Random walks over shared prefixes: every row that a resumed sequence may read must hold what its own tokens
// would have written.
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"

namespace synod {
namespace {

// The families' shapes: unbounded rows, a sliding window, compressed rows, open rows of overlapping blocks of
// 4 and of blocks of 128 that start anew at every page boundary.
CacheSpec family_spec() {
  CacheSpec spec;
  const auto add = [&](RowGroup group) { spec.groups.push_back(make_group(std::move(group))); };
  add({.name = "full", .layers = {2, 5}, .row_dim = 3});
  add({.name = "window", .layers = {0, 1}, .row_dim = 2, .window = 40, .boundary_rows = 39});
  add({.name = "wide", .layers = {3}, .row_dim = 2, .window = 300, .boundary_rows = 299});
  add({.name = "by4", .layers = {1}, .row_dim = 2, .tokens_per_row = 4});
  add({.name = "by128", .layers = {0}, .row_dim = 2, .tokens_per_row = 128});
  add({.name = "open4", .layers = {1}, .row_dim = 2, .window = 8, .boundary_rows = 4});
  add({.name = "open128", .layers = {0}, .row_dim = 2, .window = 128});
  return spec;
}

// First row that a token at position `length` or later reads, stated for these groups.
int64_t oldest_row(const RowGroup& group, int64_t length) {
  if (group.name == "open4") return std::max<int64_t>(0, length / 4 * 4 - 4);
  if (group.name == "open128") return length / 128 * 128;
  return group.window == 0 ? 0 : std::max<int64_t>(0, length - group.window + 1);
}

// Hash of every beginning of `ids`: [0] of nothing.
std::vector<uint64_t> beginnings(std::span<const int32_t> ids) {
  std::vector<uint64_t> hashes = {1469598103934665603U};
  for (const int32_t id : ids) hashes.push_back((hashes.back() ^ static_cast<uint64_t>(id)) * 1099511628211U);
  return hashes;
}

// What a row holds whose last token ends the beginning with `hash`.
float value(uint64_t hash, size_t group, int64_t layer) {
  return static_cast<float>(((hash + group * 31 + static_cast<uint64_t>(layer)) * 1099511628211U) >> 40);
}

template <typename Visit>  // visit(group, layer, row, end token)
void for_rows(const CacheSpec& spec, int64_t from, int64_t to, Visit&& visit) {
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    const RowGroup& group = spec.groups[g];
    for (int64_t row = from / group.tokens_per_row; (row + 1) * group.tokens_per_row <= to; ++row) {
      for (const int64_t layer : group.layers) visit(g, layer, row, (row + 1) * group.tokens_per_row);
    }
  }
}

class Client {
 public:
  Client(KvCache& cache, PrefixIndex& index) : cache_(cache), index_(index) {}

  void append(SequenceId id, std::span<const int32_t> ids, int64_t n, bool record = true) {
    const int64_t past = cache_.length(id);
    cache_.reserve(id, n);
    const SequenceId sequences[] = {id};
    const KvView view = cache_.view(sequences);
    const std::vector<uint64_t> hashes = beginnings(ids);
    for_rows(cache_.spec(), past, past + n, [&](size_t g, int64_t layer, int64_t row, int64_t end) {
      const float v = value(hashes[static_cast<size_t>(end)], g, layer);
      std::memcpy(view.rows(static_cast<int>(g), layer).row(0, row), &v, sizeof(v));
    });
    cache_.grow(id, n);
    if (record) index_.record_blocks(id, ids, past);
    cache_.trim(id);
  }

  void check(SequenceId id, std::span<const int32_t> ids) {
    const int64_t length = cache_.length(id);
    const std::vector<uint64_t> hashes = beginnings(ids);
    const SequenceId sequences[] = {id};
    const KvView view = cache_.view(sequences);
    for (size_t g = 0; g < cache_.spec().groups.size(); ++g) {
      const RowGroup& group = cache_.spec().groups[g];
      for (const int64_t layer : group.layers) {
        const CacheRows rows = view.rows(static_cast<int>(g), layer);
        for (int64_t row = oldest_row(group, length); (row + 1) * group.tokens_per_row <= length; ++row) {
          ASSERT_LT(row / rows.rows_per_page, static_cast<int64_t>(rows.sequences[0].pages.size()));
          ASSERT_NE(rows.sequences[0].pages[static_cast<size_t>(row / rows.rows_per_page)], nullptr)
              << group.name << " row " << row << " of " << length;
          float got = 0;
          std::memcpy(&got, rows.row(0, row), sizeof(got));
          ASSERT_EQ(got, value(hashes[static_cast<size_t>((row + 1) * group.tokens_per_row)], g, layer))
              << group.name << " layer " << layer << " row " << row << " of " << length;
        }
      }
    }
  }

 private:
  KvCache& cache_;
  PrefixIndex& index_;
};

Buffer host(int64_t bytes) { return Buffer::host(bytes); }

std::vector<int32_t> tokens(int64_t n, int32_t start) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(start + static_cast<int32_t>(i * 7 % 501));
  return ids;
}

TEST(PrefixIndex, RowsOfResumedSequencesAreTheirOwnOnRandomWalks) {
  for (const uint32_t seed : {1U, 2U, 3U}) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    CacheSpec spec = family_spec();
    KvCache cache(spec, host, spec.bytes(12000));
    PrefixIndex index(cache);
    cache.set_pressure([&] { return index.evict(); });
    Client client(cache, index);
    std::vector<std::vector<int32_t>> known = {tokens(700, 3)};
    struct Live {
      SequenceId id;
      std::vector<int32_t> ids;
    };
    std::vector<Live> live;
    int64_t resumed = 0, reused = 0;
    for (int step = 0; step < 600; ++step) {
      std::vector<int32_t> ids = known[static_cast<size_t>(draw(0, static_cast<int64_t>(known.size()) - 1))];
      ids.resize(static_cast<size_t>(draw(1, std::min<int64_t>(1500, static_cast<int64_t>(ids.size())))));
      const int64_t old = static_cast<int64_t>(ids.size());
      for (int64_t i = draw(0, 300); i > 0; --i) ids.push_back(static_cast<int32_t>(draw(0, 5)));
      const auto id = index.resume(ids, static_cast<int64_t>(ids.size()) - 1);
      SequenceId sequence = 0;
      if (id) {
        sequence = *id;
        ++resumed;
        reused += cache.length(sequence);
        ASSERT_LT(cache.length(sequence), static_cast<int64_t>(ids.size()));
        client.check(sequence, ids);
      } else {
        sequence = cache.create();
      }
      while (cache.length(sequence) < static_cast<int64_t>(ids.size())) {
        const int64_t rest = static_cast<int64_t>(ids.size()) - cache.length(sequence);
        client.append(sequence, ids, draw(1, rest));
        client.check(sequence, ids);
        if (::testing::Test::HasFatalFailure()) return;
      }
      if (draw(0, 2) == 0) index.record_tail(sequence, ids);  // and go on: pages are copied on write
      if (draw(0, 3) == 0) {
        ids.push_back(9);
        client.append(sequence, ids, 1);
        client.check(sequence, ids);
      }
      if (draw(0, 3) == 0 &&
          cache.truncate(
              sequence, cache.length(sequence) - draw(0, std::min<int64_t>(8, cache.length(sequence) - 1)))) {
        ids.resize(static_cast<size_t>(cache.length(sequence)));
        client.check(sequence, ids);
        ids.push_back(8);
        client.append(sequence, ids, 1);
      }
      if (draw(0, 4) == 0) {  // a fork lives on beside it
        Live twin{cache.fork(sequence), ids};
        twin.ids.push_back(4);
        ids.push_back(5);
        client.append(twin.id, twin.ids, 1);
        client.append(sequence, ids, 1);
        client.check(twin.id, twin.ids);
        live.push_back(std::move(twin));
      }
      client.check(sequence, ids);
      if (draw(0, 1) == 0) index.record_tail(sequence, ids);
      if (known.size() < 30 || old > 600) known.push_back(ids);
      if (known.size() > 40) known.erase(known.begin() + draw(0, 39));
      cache.release(sequence);
      while (!live.empty() && (live.size() > 2 || draw(0, 3) == 0)) {
        client.check(live.back().id, live.back().ids);
        cache.release(live.back().id);
        live.pop_back();
      }
      if (::testing::Test::HasFatalFailure()) return;
      if (draw(0, 60) == 0) index.clear();
    }
    std::printf("seed %u: %lld of 600 resumed, %lld tokens reused, %lld evictions\n", seed,
                static_cast<long long>(resumed), static_cast<long long>(reused),
                static_cast<long long>(index.evictions()));
    EXPECT_GT(resumed, 100);
    EXPECT_GT(index.evictions(), 20);
    for (const Live& l : live) cache.release(l.id);
    index.clear();
    EXPECT_EQ(cache.page_count(), 0);
    EXPECT_EQ(index.entries(), 0);
  }
}

TEST(PrefixIndex, ResumesAtTheLastBlockBeforePromptsPart) {
  KvCache cache(family_spec(), host);
  PrefixIndex index(cache);
  Client client(cache, index);
  const std::vector<int32_t> ids = tokens(1000, 1);
  const SequenceId first = cache.create();
  client.append(first, ids, 1000);
  cache.release(first);
  std::vector<int32_t> other = ids;
  other[600] += 1;
  const auto id = index.resume(other, 999);
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(cache.length(*id), 512);
  client.check(*id, other);
  EXPECT_FALSE(cache.truncate(*id, 511)) << "rows before a resumed boundary are not all there";
  other[0] += 1;
  EXPECT_FALSE(index.resume(other, 999).has_value());
}

TEST(PrefixIndex, TailsGoOnWhereASequenceEndedAndABitBefore) {
  KvCache cache(family_spec(), host);
  PrefixIndex index(cache);
  Client client(cache, index);
  std::vector<int32_t> ids = tokens(300, 1);
  const SequenceId first = cache.create();
  client.append(first, ids, 300);
  index.record_tail(first, ids);
  cache.release(first);
  EXPECT_EQ(cache.length(*index.resume(ids, 299)), 299);  // the same prompt again
  ids.resize(400, 5);
  EXPECT_EQ(cache.length(*index.resume(ids, 399)), 300);
  ids[290] += 1;
  EXPECT_EQ(cache.length(*index.resume(ids, 399)), 290);
  ids[270] += 1;
  EXPECT_EQ(cache.length(*index.resume(ids, 399)), 256) << "too far before the tail's end";
}

TEST(PrefixIndex, EqualPrefixesShareTheirPages) {
  KvCache cache(family_spec(), host);
  PrefixIndex index(cache);
  Client client(cache, index);
  const std::vector<int32_t> ids = tokens(1024, 1);
  const SequenceId first = cache.create();
  client.append(first, ids, 1024);
  const int64_t pages = cache.page_count();
  std::vector<int32_t> longer = ids;
  longer.push_back(7);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(cache.length(*index.resume(longer, 1024)), 1024);
  EXPECT_EQ(cache.page_count(), pages);
}

TEST(PrefixIndex, EvictsWhatWasUsedLeastRecently) {
  KvCache cache(family_spec(), host);
  PrefixIndex index(cache);
  Client client(cache, index);
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t p = 0; p < 3; ++p) {
    prompts.push_back(tokens(257, 1000 * p));
    const SequenceId id = cache.create();
    client.append(id, prompts.back(), 257);
    cache.release(id);
  }
  const auto known = [&](size_t p) {
    const auto id = index.resume(prompts[p], 256);
    if (id) cache.release(*id);
    return id.has_value();
  };
  EXPECT_TRUE(known(0));
  EXPECT_TRUE(index.evict());
  EXPECT_FALSE(known(1));
  EXPECT_TRUE(index.evict());
  EXPECT_FALSE(known(2));
  EXPECT_TRUE(known(0));
  EXPECT_TRUE(index.evict());
  EXPECT_FALSE(index.evict());
  EXPECT_EQ(cache.page_count(), 0);
}

}  // namespace
}  // namespace synod
