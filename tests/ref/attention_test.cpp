// CacheWrite, Attention, SparseAttention, IndexSelect on paged caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::Batch;
using testing::F32;
using testing::I32;
using testing::normal_values;
using testing::PagedRows;

// softmax(scale * q k) v of one head by the formula, with an optional sink logit.
std::vector<double> attend(const float* q, const std::vector<std::vector<float>>& keys,
                           const std::vector<std::vector<float>>& values, int64_t offset, int64_t d,
                           double scale, double sink = -INFINITY) {
  std::vector<double> logits, out(static_cast<size_t>(d));
  double top = sink;
  for (const auto& key : keys) {
    double s = 0;
    for (int64_t i = 0; i < d; ++i) s += static_cast<double>(q[i]) * key[static_cast<size_t>(offset + i)];
    logits.push_back(scale * s);
    top = std::max(top, logits.back());
  }
  double mass = std::exp(sink - top);
  for (const double l : logits) mass += std::exp(l - top);
  for (size_t j = 0; j < keys.size(); ++j) {
    for (int64_t i = 0; i < d; ++i) {
      out[static_cast<size_t>(i)] +=
          std::exp(logits[j] - top) / mass * values[j][static_cast<size_t>(offset + i)];
    }
  }
  return out;
}

std::vector<std::vector<float>> rows_of(const PagedRows& rows, int64_t seq, int64_t first, int64_t end) {
  std::vector<std::vector<float>> result;
  for (int64_t r = first; r < end; ++r) result.push_back(rows.get(seq, r));
  return result;
}

TEST(RefCacheWrite, StoresRowsAtTheirPositionsInEveryType) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    RefBackend be;
    PagedRows rows(type, 32, 4, 2, 16), want(type, 32, 4, 2, 16);
    const Batch batch({{3, 3}, {0, 2}});
    const F32 x({5, 32}, normal_values(160, 1));
    be(CacheWrite{.rows = rows.rows(), .x = x, .batch = batch.view()});
    for (int64_t t = 0; t < 5; ++t) {
      const std::vector<float> v(x.values().begin() + t * 32, x.values().begin() + (t + 1) * 32);
      want.set(t < 3 ? 0 : 1, t < 3 ? 3 + t : t - 3, v);
    }
    for (int64_t s = 0; s < 2; ++s) EXPECT_EQ(rows_of(rows, s, 0, 16), rows_of(want, s, 0, 16)) << name(type);
  }
}

TEST(RefCacheWrite, StoresOneRowPerClosedBlock) {
  RefBackend be;
  PagedRows rows(DType::kF32, 1, 2, 2, 4);
  const Batch batch({{3, 6}, {5, 3}});  // blocks 0, 1 and block 1
  const F32 x({3, 1}, {1, 2, 3});
  be(CacheWrite{.rows = rows.rows(), .x = x, .batch = batch.view(), .tokens_per_row = 4});
  EXPECT_EQ(rows_of(rows, 0, 0, 4), (std::vector<std::vector<float>>{{1}, {2}, {0}, {0}}));
  EXPECT_EQ(rows_of(rows, 1, 0, 4), (std::vector<std::vector<float>>{{0}, {3}, {0}, {0}}));
}

TEST(RefCacheWrite, ABlockThatHoldsANaNFailsTheStep) {
  RefBackend be;
  PagedRows rows(DType::kQ8_0, 32, 4, 1, 4);
  const Batch batch({{0, 1}});
  F32 x({1, 32}, normal_values(32, 1));
  x[7] = NAN;
  be(CacheWrite{.rows = rows.rows(), .x = x, .batch = batch.view()});
  EXPECT_EQ(be.take_status().bits, static_cast<uint32_t>(Status::kNonFinite));
}

struct AttentionCase {
  DType type;
  int64_t window;
};

class RefAttention : public ::testing::TestWithParam<AttentionCase> {
 protected:
  static constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 16, kRowDim = kKvHeads * kDim;
};

TEST_P(RefAttention, EqualsTheFormulaOnARaggedBatch) {
  RefBackend be;
  PagedRows k(GetParam().type, kRowDim, 5, 2, 30), v(GetParam().type, kRowDim, 5, 2, 30);
  k.fill(1), v.fill(2);
  const int64_t window = GetParam().window;
  const Batch batch({{17, 6}, {0, 8}});
  const F32 q({14, kHeads, kDim}, normal_values(14 * kHeads * kDim, 3));
  F32 out({14, kHeads, kDim});
  // Pages that left the window are gone: reading one would crash.
  if (window > 0) k.drop_page(0, 0), v.drop_page(0, 0);
  be(Attention{.out = out,
               .q = q,
               .k = k.rows(),
               .v = v.rows(),
               .batch = batch.view(),
               .n_kv_heads = kKvHeads,
               .window = window,
               .scale = 0.3F});
  for (int64_t t = 0; t < 14; ++t) {
    const int64_t s = t < 6 ? 0 : 1, position = t < 6 ? 17 + t : t - 6;
    const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    const auto keys = rows_of(k, s, first, position + 1), values = rows_of(v, s, first, position + 1);
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto want = attend(&q[(t * kHeads + h) * kDim], keys, values, h / 2 * kDim, kDim, 0.3F);
      for (int64_t i = 0; i < kDim; ++i) {
        EXPECT_NEAR(out[(t * kHeads + h) * kDim + i], want[static_cast<size_t>(i)], 1e-6) << "token " << t;
      }
    }
  }
}

TEST_P(RefAttention, DoesNotDependOnHowThePromptIsCut) {
  RefBackend be;
  PagedRows k(GetParam().type, kRowDim, 5, 1, 30), v(GetParam().type, kRowDim, 5, 1, 30);
  k.fill(1), v.fill(2);
  const F32 q({23, kHeads, kDim}, normal_values(23 * kHeads * kDim, 3));
  const auto run = [&](const std::vector<int64_t>& cuts) {
    F32 out({23, kHeads, kDim});
    int64_t past = 0;
    for (const int64_t n : cuts) {
      const Batch batch({{past, n}});
      be(Attention{.out = out.tensor().slice(0, past, past + n),
                   .q = q.tensor().slice(0, past, past + n),
                   .k = k.rows(),
                   .v = v.rows(),
                   .batch = batch.view(),
                   .n_kv_heads = kKvHeads,
                   .window = GetParam().window,
                   .scale = 0.3F});
      past += n;
    }
    EXPECT_EQ(past, 23);
    return out.values();
  };
  const std::vector<float> whole = run({23});
  EXPECT_EQ(run({5, 5, 5, 5, 3}), whole) << "cut at page borders";
  EXPECT_EQ(run({4, 1, 1, 9, 8}), whole);
  EXPECT_EQ(run(std::vector<int64_t>(23, 1)), whole);
}

INSTANTIATE_TEST_SUITE_P(TypesAndWindows, RefAttention,
                         ::testing::Values(AttentionCase{DType::kF32, 0}, AttentionCase{DType::kF32, 7},
                                           AttentionCase{DType::kF32, 1}, AttentionCase{DType::kQ8_0, 7},
                                           AttentionCase{DType::kF16, 0}, AttentionCase{DType::kBF16, 12}));

class RefSparse : public ::testing::Test {
 protected:
  static constexpr int64_t kHeads = 3, kDim = 8, kWindow = 6, kRatio = 4, kTokens = 22;
  RefSparse() { window.fill(1), compressed.fill(2); }

  SparseAttention op(const BatchView* batch, int64_t first, int64_t n) {
    return {.out = out.tensor().slice(0, first, first + n),
            .q = q.tensor().slice(0, first, first + n),
            .sinks = sinks,
            .window_rows = window.rows(),
            .compressed = compressed.rows(),
            .batch = batch,
            .window = kWindow,
            .ratio = kRatio,
            .scale = 0.4F};
  }
  RefBackend be;
  PagedRows window{DType::kF32, kDim, 5, 1, 30}, compressed{DType::kF32, kDim, 3, 1, 8};
  F32 q{{kTokens, kHeads, kDim}, normal_values(kTokens*kHeads*kDim, 3)}, out{{kTokens, kHeads, kDim}};
  F32 sinks{{kHeads}, {-1.0F, 0.5F, 2.0F}};
};

TEST_F(RefSparse, SeesTheWindowAndEveryClosedBlock) {
  const Batch batch({{0, kTokens}});
  be(op(batch.view(), 0, kTokens));
  for (int64_t t = 0; t < kTokens; ++t) {
    auto keys = rows_of(window, 0, std::max<int64_t>(0, t - kWindow + 1), t + 1);
    const auto blocks = rows_of(compressed, 0, 0, (t + 1) / kRatio);
    keys.insert(keys.end(), blocks.begin(), blocks.end());
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto want = attend(&q[(t * kHeads + h) * kDim], keys, keys, 0, kDim, 0.4F, sinks[h]);
      for (int64_t i = 0; i < kDim; ++i)
        EXPECT_NEAR(out[(t * kHeads + h) * kDim + i], want[static_cast<size_t>(i)], 1e-6);
    }
  }
}

TEST_F(RefSparse, SelectedRowsReplaceAllRows) {
  const Batch batch({{20, 1}});
  const I32 some({1, 3}, {1, 4, -1}), all({1, 6}, {0, 1, 2, 3, 4, -1}), none({1, 2}, {-1, -1});
  SparseAttention sparse = op(batch.view(), 20, 1);
  const auto result = [&] {
    be(sparse);
    return std::vector<float>(out.values().begin() + 20 * kHeads * kDim,
                              out.values().begin() + 21 * kHeads * kDim);
  };
  const std::vector<float> dense = result();
  sparse.selected = all;
  EXPECT_EQ(result(), dense);
  sparse.selected = some;
  const std::vector<float> chosen = result();
  EXPECT_NE(chosen, dense);
  auto keys = rows_of(window, 0, 15, 21);
  keys.push_back(compressed.get(0, 1)), keys.push_back(compressed.get(0, 4));
  const auto want = attend(&q[20 * kHeads * kDim], keys, keys, 0, kDim, 0.4F, sinks[0]);
  for (int64_t i = 0; i < kDim; ++i)
    EXPECT_NEAR(chosen[static_cast<size_t>(i)], want[static_cast<size_t>(i)], 1e-6);
  sparse.selected = none;
  const std::vector<float> window_only = result();
  sparse.selected = {};
  sparse.compressed = {};
  EXPECT_EQ(result(), window_only);
}

TEST_F(RefSparse, ASinkTakesMassButHasNoValue) {
  const Batch batch({{0, kTokens}});
  SparseAttention sparse = op(batch.view(), 0, kTokens);
  sparse.compressed = {};
  F32 minus({kHeads}, std::vector<float>(kHeads, -INFINITY)),
      plus({kHeads}, std::vector<float>(kHeads, INFINITY)), large({kHeads}, std::vector<float>(kHeads, 1e4F));
  for (const F32* sink : {&plus, &large}) {
    sparse.sinks = *sink;
    be(sparse);
    EXPECT_EQ(out.values(), std::vector<float>(static_cast<size_t>(kTokens * kHeads * kDim), 0.0F));
  }
  sparse.sinks = minus;
  be(sparse);
  F32 plain({kTokens, kHeads, kDim});
  be(Attention{.out = plain,
               .q = q,
               .k = window.rows(),
               .v = window.rows(),
               .batch = batch.view(),
               .n_kv_heads = 1,
               .window = kWindow,
               .scale = 0.4F});
  EXPECT_EQ(out.values(), plain.values());
}

TEST_F(RefSparse, DoesNotDependOnHowThePromptIsCut) {
  const auto run = [&](const std::vector<int64_t>& cuts) {
    int64_t past = 0;
    for (const int64_t n : cuts) {
      const Batch batch({{past, n}});
      be(op(batch.view(), past, n));
      past += n;
    }
    return out.values();
  };
  const std::vector<float> whole = run({kTokens});
  EXPECT_EQ(run({3, 1, 1, 5, 12}), whole);
  EXPECT_EQ(run({5, 5, 5, 7}), whole);
  EXPECT_EQ(run(std::vector<int64_t>(kTokens, 1)), whole);
}

class RefIndex : public ::testing::Test {
 protected:
  static constexpr int64_t kHeads = 2, kDim = 8, kRatio = 4, kTop = 3, kTokens = 40;
  RefIndex() { keys.fill(4); }
  std::vector<int32_t> run(const std::vector<int64_t>& cuts) {
    I32 selected({kTokens, kTop});
    int64_t past = 0;
    for (const int64_t n : cuts) {
      const Batch batch({{past, n}});
      be(IndexSelect{.selected = selected.tensor().slice(0, past, past + n),
                     .q = q.tensor().slice(0, past, past + n),
                     .beta = beta.tensor().slice(0, past, past + n),
                     .keys = keys.rows(),
                     .batch = batch.view(),
                     .ratio = kRatio});
      past += n;
    }
    return selected.values();
  }
  RefBackend be;
  PagedRows keys{DType::kF32, kDim, 3, 1, 12};
  F32 q{{kTokens, kHeads, kDim}, normal_values(kTokens*kHeads*kDim, 5)},
      beta{{kTokens, kHeads}, normal_values(80, 6)};
};

TEST_F(RefIndex, ChoosesTheLargestVisibleScores) {
  const std::vector<int32_t> selected = run({kTokens});
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t n_visible = (t + 1) / kRatio;
    std::vector<std::pair<double, int32_t>> scores;
    for (int32_t w = 0; w < n_visible; ++w) {
      const std::vector<float> key = keys.get(0, w);
      double score = 0;
      for (int64_t h = 0; h < kHeads; ++h) {
        double match = 0;
        for (int64_t i = 0; i < kDim; ++i)
          match += q[(t * kHeads + h) * kDim + i] * key[static_cast<size_t>(i)];
        score += beta[t * kHeads + h] * std::max(0.0, match);
      }
      scores.emplace_back(-score, w);
    }
    std::ranges::sort(scores);
    scores.resize(static_cast<size_t>(std::min(kTop, n_visible)));
    std::vector<int32_t> want;
    for (const auto& [score, w] : scores) want.push_back(w);
    std::ranges::sort(want);
    want.resize(kTop, -1);
    EXPECT_EQ(std::vector<int32_t>(selected.begin() + t * kTop, selected.begin() + (t + 1) * kTop), want)
        << t;
  }
}

TEST_F(RefIndex, DoesNotDependOnHowThePromptIsCut) {
  const std::vector<int32_t> whole = run({kTokens});
  EXPECT_EQ(run({3, 1, 12, 1, 23}), whole);
  EXPECT_EQ(run(std::vector<int64_t>(kTokens, 1)), whole);
}

TEST_F(RefIndex, TiesGoToTheLowerRowAndNaNsFailTheStep) {
  for (int64_t r = 0; r < 12; ++r) keys.set(0, r, std::vector<float>(kDim, 0.0F));
  const std::vector<int32_t> tied = run({kTokens});
  EXPECT_EQ(std::vector<int32_t>(tied.end() - kTop, tied.end()), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(be.take_status().bits, 0U);
  q[(kTokens - 1) * kHeads * kDim] = NAN;
  EXPECT_EQ(run({kTokens}), tied) << "ids stay valid";
  EXPECT_EQ(be.take_status().bits, static_cast<uint32_t>(Status::kNonFinite));
}

}  // namespace
}  // namespace synod
