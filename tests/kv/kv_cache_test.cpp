// Random walks against a model that remembers what every row should hold.
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/error.h"

namespace synod {
namespace {

// The shapes of the families: all rows, sliding windows of both sizes, compressed rows, open compressor rows.
CacheSpec mixed_spec() {
  CacheSpec spec;
  spec.groups.push_back(make_group({.name = "full", .layers = {2, 5}, .row_dim = 3}));
  spec.groups.push_back(make_group({.name = "window", .layers = {0, 1, 3}, .row_dim = 2, .window = 40}));
  spec.groups.push_back(make_group({.name = "narrow", .layers = {4}, .row_dim = 2, .window = 8}));
  spec.groups.push_back(make_group({.name = "one", .layers = {4}, .row_dim = 2, .window = 1}));
  spec.groups.push_back(make_group({.name = "by4", .layers = {1}, .row_dim = 2, .tokens_per_row = 4}));
  spec.groups.push_back(make_group({.name = "by128", .layers = {0}, .row_dim = 2, .tokens_per_row = 128}));
  spec.groups.push_back(
      make_group({.name = "window4", .layers = {3}, .row_dim = 2, .tokens_per_row = 4, .window = 5}));
  return spec;
}

Buffer host(int64_t bytes) { return Buffer::host(bytes); }

// First row that the next token reads: stated anew here, not taken from the code under test.
int64_t oldest_row(const RowGroup& group, int64_t length) {
  const int64_t own = length / group.tokens_per_row;
  return group.window == 0 ? 0 : std::max<int64_t>(0, own - group.window + 1);
}

// One sequence as it should be: the tag of each row of each group, the same in all layers but for the layer.
struct Expected {
  int64_t length = 0;
  int64_t longest = 0;                   // ever committed
  std::vector<std::vector<float>> tags;  // [group][row]
};

class Walk {
 public:
  Walk(KvCache& cache, uint32_t seed) : cache_(cache), random_(seed) {}

  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  void create() {
    const SequenceId id = cache_.create();
    expected_[id].tags.resize(cache_.spec().groups.size());
  }

  SequenceId pick() {
    auto it = expected_.begin();
    std::advance(it, draw(0, static_cast<int64_t>(expected_.size()) - 1));
    return it->first;
  }

  void append(SequenceId id) {
    Expected& e = expected_[id];
    const int64_t reserved = draw(1, draw(0, 3) == 0 ? 600 : 5);
    const int64_t committed = draw(0, reserved);
    cache_.reserve(id, reserved);
    write(id, e, committed);
    cache_.commit(id, committed);
    e.length += committed;
    e.longest = std::max(e.longest, e.length);
    ASSERT_EQ(cache_.length(id), e.length);
  }

  // Writes the rows that the new tokens close or open.
  void write(SequenceId id, Expected& e, int64_t n_tokens) {
    const SequenceId ids[] = {id};
    const KvView view = cache_.view(ids);
    for (size_t g = 0; g < e.tags.size(); ++g) {
      const RowGroup& group = cache_.spec().groups[g];
      const int64_t end = (e.length + n_tokens + group.tokens_per_row - 1) / group.tokens_per_row;
      e.tags[g].resize(static_cast<size_t>(end));
      for (int64_t row = e.length / group.tokens_per_row; row < end; ++row) {
        const float tag = next_tag_++;
        e.tags[g][static_cast<size_t>(row)] = tag;
        for (const int64_t layer : group.layers) fill(view.rows(static_cast<int>(g), layer), row, tag, layer);
      }
    }
  }

  static void fill(const CacheRows& rows, int64_t row, float tag, int64_t layer) {
    ASSERT_NE(rows.sequences[0].pages[static_cast<size_t>(row / rows.rows_per_page)], nullptr);
    for (int64_t i = 0; i < rows.row_dim; ++i) {
      const float value = tag + 0.125F * static_cast<float>(layer);
      std::memcpy(rows.row(0, row) + i * 4, &value, 4);
    }
  }

  void roll_back(SequenceId id) {
    Expected& e = expected_[id];
    const int64_t length = std::max<int64_t>(0, e.length - draw(0, draw(0, 2) == 0 ? 300 : 16));
    const int64_t pages = cache_.page_count();
    if (cache_.truncate(id, length)) {
      e.length = length;
    } else {
      ++refused_;
      EXPECT_GT(e.longest - length, kRollbackSlack);
      EXPECT_EQ(cache_.length(id), e.length);
      EXPECT_EQ(cache_.page_count(), pages);
    }
  }

  void release(SequenceId id) {
    cache_.release(id);
    expected_.erase(id);
  }

  void check() {
    std::vector<SequenceId> ids;
    for (const auto& [id, e] : expected_) ids.push_back(id);
    const KvView view = cache_.view(ids);
    int64_t n_pages = 0;
    std::set<const std::byte*> pages;
    for (size_t g = 0; g < cache_.spec().groups.size(); ++g) {
      for (const int64_t layer : cache_.spec().groups[g].layers) {
        const CacheRows rows = view.rows(static_cast<int>(g), layer);
        for (size_t s = 0; s < ids.size(); ++s) {
          check_rows(rows, static_cast<int64_t>(s), expected_[ids[s]], g, layer);
          for (const std::byte* page : rows.sequences[s].pages) {
            if (page == nullptr) continue;
            ++n_pages;
            EXPECT_TRUE(pages.insert(page).second) << "a page belongs to two tables";
          }
        }
      }
    }
    EXPECT_EQ(n_pages, cache_.page_count());
  }

  void check_rows(const CacheRows& rows, int64_t s, const Expected& e, size_t g, int64_t layer) {
    const RowGroup& group = cache_.spec().groups[g];
    const int64_t end = (e.length + group.tokens_per_row - 1) / group.tokens_per_row;
    for (int64_t row = oldest_row(group, e.length); row < end; ++row) {
      const float want = e.tags[g][static_cast<size_t>(row)] + 0.125F * static_cast<float>(layer);
      std::byte* page =
          rows.sequences[static_cast<size_t>(s)].pages[static_cast<size_t>(row / rows.rows_per_page)];
      ASSERT_NE(page, nullptr) << group.name << " row " << row << " of " << e.length << " tokens";
      float got = 0;
      std::memcpy(&got, rows.row(s, row), 4);
      ASSERT_EQ(got, want) << group.name << " layer " << layer << " row " << row;
    }
  }

  std::map<SequenceId, Expected> expected_;
  int64_t refused_ = 0;

 private:
  KvCache& cache_;
  std::mt19937 random_;
  float next_tag_ = 1;
};

TEST(KvCache, KeepsEveryRowInsideTheWindowOnRandomWalks) {
  int64_t refused = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    KvCache cache(mixed_spec(), host);
    Walk walk(cache, seed);
    walk.create();
    for (int step = 0; step < 120; ++step) {
      const int64_t action = walk.draw(0, 9);
      if (action == 0 && walk.expected_.size() < 4) {
        walk.create();
      } else if (action == 1 && walk.expected_.size() > 1) {
        walk.release(walk.pick());
      } else if (action <= 4) {
        walk.roll_back(walk.pick());
      } else {
        walk.append(walk.pick());
      }
      walk.check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    refused += walk.refused_;
    while (!walk.expected_.empty()) walk.release(walk.expected_.begin()->first);
    EXPECT_EQ(cache.page_count(), 0);
    EXPECT_EQ(cache.used_bytes(), 0);
  }
  EXPECT_GT(refused, 0);  // the walk went beyond the slack at least once
}

TEST(KvCache, RollsBackBySlackFromAnyLengthButNotPastTheWindow) {
  for (int64_t length = 1; length < 700; length += 7) {
    KvCache cache(mixed_spec(), host);
    const SequenceId id = cache.create();
    cache.reserve(id, length);
    cache.commit(id, length);
    EXPECT_TRUE(cache.truncate(id, std::max<int64_t>(0, length - kRollbackSlack))) << length;
  }
  KvCache cache(mixed_spec(), host);
  const SequenceId id = cache.create();
  cache.reserve(id, 1000);
  cache.commit(id, 1000);
  EXPECT_FALSE(cache.truncate(id, 500));
  EXPECT_EQ(cache.length(id), 1000);
  EXPECT_TRUE(cache.truncate(id, 0));  // nothing before the start is ever read
  EXPECT_EQ(cache.page_count(), 0);
  cache.reserve(id, 3);
  const SequenceId ids[] = {id};
  EXPECT_NE(cache.view(ids).rows(1, 0).row(0, 0), nullptr);
}

TEST(KvCache, WindowedGroupsStopGrowing) {
  CacheSpec spec;
  spec.groups.push_back(make_group({.name = "w", .layers = {0, 1}, .row_dim = 4, .window = 100}));
  ASSERT_EQ(spec.groups[0].rows_per_page, 128);
  KvCache cache(spec, host);
  const SequenceId id = cache.create();
  int64_t most = 0;
  for (int64_t t = 0; t < 2000; ++t) {
    cache.reserve(id, 1);
    most = std::max(most, cache.page_count());
    EXPECT_LE(cache.used_bytes(), cache.spec().bytes(t + 1)) << t;
    cache.commit(id, 1);
  }
  // 100 rows and 16 of slack touch at most two pages of 128; two layers.
  EXPECT_EQ(most, 4);
  const SequenceId ids[] = {id};
  const auto pages = cache.view(ids).rows(0, 1).sequences[0].pages;
  EXPECT_EQ(pages.size(), 16U);
  EXPECT_EQ(pages[0], nullptr);
  EXPECT_NE(pages[15], nullptr);
}

TEST(KvCache, PageSizesFollowWindowsAndRatios) {
  const auto rows = [](int64_t tokens_per_row, int64_t window) {
    return make_group(
               {.name = "g", .layers = {0}, .row_dim = 8, .tokens_per_row = tokens_per_row, .window = window})
        .rows_per_page;
  };
  EXPECT_EQ(rows(1, 0), 256);
  EXPECT_EQ(rows(4, 0), 64);
  EXPECT_EQ(rows(128, 0), 2);
  EXPECT_EQ(rows(256, 0), 1);
  EXPECT_EQ(rows(1, 1024), 256);
  EXPECT_EQ(rows(1, 128), 128);
  EXPECT_EQ(rows(1, 129), 256);
  EXPECT_EQ(rows(1, 1), 16);
  EXPECT_EQ(rows(128, 1), 2);
  EXPECT_EQ(rows(4, 33), 64);
  const RowGroup q8 = make_group({.name = "q", .layers = {0}, .type = DType::kQ8_0, .row_dim = 64});
  EXPECT_EQ(q8.row_bytes, 68);
  EXPECT_EQ(q8.page_bytes(), 256 * 68);
}

TEST(KvCache, SpecBytesRoundUpToPages) {
  CacheSpec spec;
  spec.groups.push_back(make_group({.name = "full", .layers = {0, 1}, .row_dim = 4}));
  spec.groups.push_back(make_group({.name = "by128", .layers = {1}, .row_dim = 4, .tokens_per_row = 128}));
  const int64_t full_page = 256 * 16, slow_page = 2 * 16;
  EXPECT_EQ(spec.bytes(0), 0);
  EXPECT_EQ(spec.bytes(1), 2 * full_page + slow_page);
  EXPECT_EQ(spec.bytes(257), 4 * full_page + 2 * slow_page);
  EXPECT_NE(spec.describe().find("by128: 1 layers"), std::string::npos) << spec.describe();
}

TEST(KvCache, SpecBytesBoundWhatCallsOfAnySizeTake) {
  for (const int64_t call : {1, 2, 7, 64, 300, 512}) {
    KvCache cache(mixed_spec(), {});
    const SequenceId s = cache.create();
    int64_t most = 0, length = 0;
    for (; length < 3000; length += call) {
      cache.reserve(s, call);
      most = std::max(most, cache.used_bytes());
      cache.commit(s, call);
    }
    const int64_t bound = cache.spec().bytes(length, call);
    EXPECT_LE(most, bound) << call;
    // Tight up to where windows lie on page borders: one page of every windowed group.
    int64_t slack = 0;
    for (const RowGroup& group : cache.spec().groups) {
      if (group.window > 0) slack += group.page_bytes() * static_cast<int64_t>(group.layers.size());
    }
    EXPECT_GE(most, bound - slack) << call;
  }
}

TEST(KvCache, RefusesBeyondTheBoundWithNumbersAndNoChange) {
  CacheSpec spec;
  spec.groups.push_back(make_group({.name = "full", .layers = {0}, .row_dim = 256}));  // 256 KiB a page
  KvCache cache(spec, host, 3 * (256 << 10));
  const SequenceId a = cache.create(), b = cache.create();
  cache.reserve(a, 512);
  cache.commit(a, 512);
  try {
    cache.reserve(b, 257);
    FAIL() << "two pages where one is left";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kNoMemory);
    const std::string message = error.what();
    for (const char* part : {"257", "512.00 KiB", "768.00 KiB"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
  EXPECT_EQ(cache.page_count(), 2);
  EXPECT_EQ(cache.length(b), 0);
  cache.reserve(b, 256);  // what fits still does
  EXPECT_EQ(cache.page_count(), 3);
  EXPECT_EQ(cache.used_bytes(), 3 * (256 << 10));
}

TEST(KvCache, AFailingAllocatorChangesNothing) {
  int64_t budget = 2 << 20;
  const auto allocator = [&](int64_t bytes) {
    if (bytes > budget) fail(Error::Kind::kNoMemory, "no {} bytes", bytes);
    budget -= bytes;
    return Buffer::host(bytes);
  };
  CacheSpec spec;
  spec.groups.push_back(make_group({.name = "a", .layers = {0}, .row_dim = 1024}));  // 1 MiB a page
  spec.groups.push_back(make_group({.name = "b", .layers = {0}, .row_dim = 1024}));
  KvCache cache(spec, allocator, 6 << 20);
  const SequenceId id = cache.create();
  EXPECT_THROW(cache.reserve(id, 600), Error);
  EXPECT_EQ(cache.page_count(), 0);
  EXPECT_EQ(cache.length(id), 0);
  budget = 64 << 20;
  cache.reserve(id, 600);
  EXPECT_EQ(cache.page_count(), 6);
}

TEST(KvCache, PagesOfReleasedSequencesAreReused) {
  int64_t allocated = 0;
  KvCache cache(mixed_spec(), [&](int64_t bytes) {
    allocated += bytes;
    return Buffer::host(bytes);
  });
  int64_t after_first = 0;
  for (int round = 0; round < 10; ++round) {
    const SequenceId id = cache.create();
    cache.reserve(id, 1500);
    cache.commit(id, 1500);
    cache.release(id);
    if (round == 0) after_first = allocated;
  }
  EXPECT_EQ(allocated, after_first);
}

TEST(KvCache, DryCacheCountsTheSamePages) {
  KvCache real(mixed_spec(), host), dry(mixed_spec(), nullptr);
  for (KvCache* cache : {&real, &dry}) {
    const SequenceId id = cache->create();
    cache->reserve(id, 900);
    cache->commit(id, 800);
    EXPECT_TRUE(cache->truncate(id, 790));
  }
  EXPECT_GT(real.page_count(), 0);
  EXPECT_EQ(dry.page_count(), real.page_count());
  EXPECT_EQ(dry.used_bytes(), real.used_bytes());
  const SequenceId ids[] = {0};
  const CacheRows rows = dry.view(ids).rows(0, 5);
  EXPECT_TRUE(rows.sequences.empty());
  EXPECT_EQ(rows.row_dim, 3);
}

TEST(KvCache, ViewsOutliveTheCreationOfSequences) {
  KvCache cache(mixed_spec(), host);
  const SequenceId id = cache.create();
  cache.reserve(id, 10);
  const SequenceId ids[] = {id};
  const KvView view = cache.view(ids);
  const std::byte* before = view.rows(0, 2).row(0, 9);
  for (int i = 0; i < 100; ++i) cache.create();
  EXPECT_EQ(view.rows(0, 2).row(0, 9), before);
}

}  // namespace
}  // namespace synod
