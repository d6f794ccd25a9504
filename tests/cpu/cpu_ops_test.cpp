// The CPU backend's norms, rotations, attention and hyper-connections against the reference, and bit for bit
// against themselves over instruction sets, thread counts and cuts of the prompt.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "cpu/cpu_backend.h"
#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::Batch;
using testing::F32;
using testing::I32;
using testing::normal_values;
using testing::PagedRows;
using testing::StoredMatrix;
using Values = std::vector<float>;

std::unique_ptr<CpuBackend> make_cpu(std::string_view isa, int n_threads) {
  return std::make_unique<CpuBackend>(std::make_unique<RefBackend>(),
                                      CpuOptions{.n_threads = n_threads, .isa = isa});
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// `compute` runs an op and returns its outputs. Every table and thread count must give the same bits, and
// these must be within `tolerance` * (1 + |want|) of the reference.
Values expect_close(const std::function<Values(Backend&)>& compute, double tolerance) {
  RefBackend ref;
  const Values want = compute(ref);
  Values first;
  for (const cpu::KernelTable* table : cpu::available_tables()) {
    for (const int n_threads : {1, 2, 3}) {
      const auto be = make_cpu(table->name, n_threads);
      const Values got = compute(*be);
      if (first.empty()) first = got;
      EXPECT_TRUE(same_bits(got, first)) << table->name << " with " << n_threads << " threads";
    }
  }
  EXPECT_EQ(first.size(), want.size());
  double worst = 0.0;
  for (size_t i = 0; i < std::min(first.size(), want.size()); ++i) {
    const double error = std::abs(static_cast<double>(first[i]) - want[i]) / (1.0 + std::abs(want[i]));
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  EXPECT_LE(worst, tolerance);
  return first;
}

constexpr double kRounding = 0x1p-23;  // two roundings to f32

TEST(CpuOps, NormsEqualTheReference) {
  for (const int64_t d : {1, 7, 16, 63, 64, 100, 256, 2816, 9000}) {
    const F32 x({37, d}, normal_values(37 * d, 1, 3.0F)), w({d}, normal_values(d, 2));
    for (const bool weighted : {false, true}) {
      expect_close(
          [&](Backend& be) {
            F32 out({37, d});
            RmsNorm op{.out = out, .x = x, .eps = 1e-6F, .factor = 0.7F};
            if (weighted) op.weight = w;
            be(op);
            return out.values();
          },
          // Lanes of d / 64 squares, halved by the root, and three products.
          (4.0 + static_cast<double>(d) / 128) * kRounding);
    }
  }
}

TEST(CpuOps, RotationsHaveTheBitsOfTheReference) {
  for (const auto layout : {Rope::Layout::kHalves, Rope::Layout::kInterleaved}) {
    for (const int64_t n_pairs : {1, 5, 16, 37, 128}) {
      const int64_t d = 2 * n_pairs + 9;
      const F32 freqs({n_pairs}, normal_values(n_pairs, 3));
      I32 positions({5}, {0, 1, 77, 4096, 131071});
      for (const bool inverse : {false, true}) {
        const auto compute = [&](Backend& be) {
          F32 x({5, 3, d}, normal_values(15 * d, 4));
          be(Rope{.x = x,
                  .positions = positions,
                  .freqs = freqs,
                  .layout = layout,
                  .first = 4,
                  .inverse = inverse});
          return x.values();
        };
        RefBackend ref;
        EXPECT_TRUE(same_bits(expect_close(compute, 0.0), compute(ref)));
      }
    }
  }
}

TEST(CpuOps, GatesEqualTheReference) {
  for (const int64_t d : {1, 15, 16, 33, 704, 20000}) {
    F32 gate({4, d}, normal_values(4 * d, 5, 4.0F));
    const F32 up({4, d}, normal_values(4 * d, 6)), weight({4}, {1.0F, 0.5F, -2.0F, 0.0F});
    gate[0] = -200.0F, gate[d] = 200.0F, gate[2 * d] = 0.0F;
    for (const auto act : {Glu::Act::kSilu, Glu::Act::kGeluTanh}) {
      for (const float limit : {0.0F, 1.5F}) {
        expect_close(
            [&](Backend& be) {
              F32 out({4, d});
              be(Glu{.out = out, .gate = gate, .up = up, .row_weight = weight, .act = act, .limit = limit});
              return out.values();
            },
            16 * kRounding);
      }
    }
  }
}

TEST(CpuOps, SumsAndScalesEqualTheReference) {
  for (const int64_t d : {1, 17, 2816, 30000}) {
    const F32 a({9, d}, normal_values(9 * d, 7)), b({9, d}, normal_values(9 * d, 8)), by({1}, {1.7F});
    expect_close(
        [&](Backend& be) {
          F32 out({9, d});
          be(Add{.out = out, .a = a, .b = b, .factor = 0.3F});
          be(Add{.out = out, .a = out, .b = b});
          be(Scale{.x = out, .by = by, .factor = 0.9F});
          return out.values();
        },
        8 * kRounding);
  }
}

TEST(CpuOps, SoftCapIsAccurateNearZeroAndFarAway) {
  Values x = normal_values(20000, 9, 40.0F);
  for (size_t i = 0; i < 100; ++i) x[i] *= 1e-6F;
  x[100] = 1e30F, x[101] = -1e30F, x[102] = 0.0F;
  const Values got = expect_close(
      [&](Backend& be) {
        F32 v({1, 20000}, x);
        be(SoftCap{.x = v, .cap = 30.0F});
        return v.values();
      },
      4 * kRounding);
  for (size_t i = 0; i < 100; ++i) EXPECT_NEAR(got[i], x[i], std::abs(x[i]) * 1e-6);
}

TEST(CpuOps, ANaNStaysANaN) {
  for (const cpu::KernelTable* table : cpu::available_tables()) {
    const auto be = make_cpu(table->name, 1);
    F32 x({1, 20}, normal_values(20, 1));
    x[3] = NAN;
    F32 out({1, 20});
    (*be)(Glu{.out = out, .gate = x, .up = x, .limit = 1.0F});
    EXPECT_TRUE(std::isnan(out[3]) && std::isfinite(out[4])) << table->name;
    (*be)(SoftCap{.x = x, .cap = 5.0F});
    EXPECT_TRUE(std::isnan(x[3]) && std::isfinite(x[4])) << table->name;
    (*be)(RmsNorm{.out = out, .x = x});
    EXPECT_TRUE(std::isnan(out[4])) << table->name;
  }
}

TEST(CpuOps, HyperConnectionsEqualTheReference) {
  for (const int64_t d : {3, 40, 1024}) {
    for (const int64_t n : {2, 4}) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        const int64_t mixes = 2 * n + n * n, n_tokens = 11;
        const float deviation = 1.0F / std::sqrt(static_cast<float>(n * d));
        const F32 x({n_tokens, n, d}, normal_values(n_tokens * n * d, 10)),
            y({n_tokens, d}, normal_values(n_tokens * d, 11));
        const StoredMatrix fn(type, mixes, n * d, 12, deviation), head(type, n, n * d, 13, deviation);
        const F32 base({mixes}, normal_values(mixes, 14)), head_base({n}, normal_values(n, 15));
        const F32 scale({3}, {0.8F, 1.1F, 0.6F}), head_scale({1}, {0.9F});
        expect_close(
            [&](Backend& be) {
              F32 pre({n_tokens, n}), post({n_tokens, n}), comb({n_tokens, n, n}), weights({n_tokens, n});
              F32 expanded({n_tokens, n, d}), collapsed({n_tokens, d}), mixed({n_tokens, n, d});
              be(HcExpand{.out = expanded, .x = y});
              be(HcMix{.pre = pre,
                       .post = post,
                       .comb = comb,
                       .x = x,
                       .fn = fn,
                       .base = base,
                       .scale = scale,
                       .norm_eps = 1e-6F,
                       .eps = 1e-6F,
                       .iterations = 20});
              be(HcHeadMix{.weights = weights,
                           .x = x,
                           .fn = head,
                           .base = head_base,
                           .scale = head_scale,
                           .norm_eps = 1e-6F,
                           .eps = 1e-6F});
              be(HcCollapse{.out = collapsed, .x = x, .weights = weights});
              be(HcPost{.out = mixed, .y = y, .x = x, .post = post, .comb = comb});
              Values all;
              for (const F32* t : {&pre, &post, &comb, &weights, &expanded, &collapsed, &mixed}) {
                all.insert(all.end(), t->values().begin(), t->values().end());
              }
              return all;
            },
            // Sums of 32 products per lane and block, then a few operations.
            40 * kRounding);
      }
    }
  }
}

struct Shape {
  int64_t n_heads, n_kv_heads, d, window;
  DType type;
};

class CpuAttention : public ::testing::TestWithParam<Shape> {};

TEST_P(CpuAttention, EqualsTheReferenceOnARaggedBatch) {
  const auto [n_heads, n_kv, d, window, type] = GetParam();
  PagedRows k(type, n_kv * d, 24, 3, 240), v(type, n_kv * d, 24, 3, 240);
  k.fill(1), v.fill(2);
  const Batch batch({{190, 1}, {0, 70}, {121, 9}});
  if (window > 0 && window < 100) k.drop_page(0, 0), v.drop_page(0, 0);
  const F32 q({80, n_heads, d}, normal_values(80 * n_heads * d, 3));
  expect_close(
      [&, heads = n_heads, dim = d, kv = n_kv, w = window](Backend& be) {
        F32 out({80, heads, dim});
        be(Attention{.out = out,
                     .q = q,
                     .k = k.rows(),
                     .v = v.rows(),
                     .batch = batch.view(),
                     .n_kv_heads = kv,
                     .window = w,
                     .scale = 2.0F / std::sqrt(static_cast<float>(dim))});
        return out.values();
      },
      // A score of size 2 sqrt(2 ln n) from d / 16 products per lane; weights carry its error.
      (16.0 + static_cast<double>(d) / 8) * kRounding);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CpuAttention,
    ::testing::Values(Shape{4, 2, 64, 0, DType::kF32}, Shape{4, 2, 96, 33, DType::kF32},
                      Shape{6, 2, 80, 64, DType::kBF16}, Shape{8, 1, 512, 0, DType::kF32},
                      Shape{5, 1, 20, 100, DType::kF16}, Shape{4, 4, 256, 50, DType::kF32},
                      Shape{4, 2, 16, 0, DType::kQ8_0}, Shape{4, 2, 64, 17, DType::kQ8_0}));

TEST(CpuAttentionCuts, AnyCutOfAPromptGivesTheSameBits) {
  constexpr int64_t kHeads = 4, kKv = 2, kDim = 48, kTokens = 150;
  PagedRows k(DType::kF32, kKv * kDim, 32, 1, kTokens), v(DType::kF32, kKv * kDim, 32, 1, kTokens);
  k.fill(1), v.fill(2);
  // A row that is not visible yet must not matter, whatever it holds.
  k.set(0, kTokens - 1, Values(kKv * kDim, NAN));
  const F32 q({kTokens, kHeads, kDim}, normal_values(kTokens * kHeads * kDim, 3));
  for (const int64_t window : {0, 40}) {
    const auto compute = [&](int64_t step) {
      const auto be = make_cpu("", 2);
      F32 out({kTokens, kHeads, kDim});
      for (int64_t at = 0; at < kTokens; at += step) {
        const int64_t end = std::min(kTokens, at + step);
        const Batch batch({{at, end - at}});
        (*be)(Attention{.out = out.tensor().slice(0, at, end),
                        .q = q.tensor().slice(0, at, end),
                        .k = k.rows(),
                        .v = v.rows(),
                        .batch = batch.view(),
                        .n_kv_heads = kKv,
                        .window = window,
                        .scale = 0.2F});
      }
      Values got = out.values();
      got.resize(static_cast<size_t>((kTokens - 1) * kHeads * kDim));  // the last token is NaN
      return got;
    };
    const Values whole = compute(kTokens);
    EXPECT_TRUE(std::isfinite(whole.back()));
    for (const int64_t step : {1, 7, 64})
      EXPECT_TRUE(same_bits(compute(step), whole)) << step << " " << window;
  }
}

TEST(CpuAttentionCuts, ManySegmentsMergeToTheReference) {
  constexpr int64_t kHeads = 8, kDim = 64;
  PagedRows k(DType::kF32, kDim, 256, 1, 3072), v(DType::kF32, kDim, 256, 1, 3072);
  k.fill(1), v.fill(2);
  const Batch batch({{2998, 3}});
  const F32 q({3, kHeads, kDim}, normal_values(3 * kHeads * kDim, 3));
  for (const int64_t window : {0, 1024, 1500}) {
    expect_close(
        [&](Backend& be) {
          F32 out({3, kHeads, kDim});
          be(Attention{.out = out,
                       .q = q,
                       .k = k.rows(),
                       .v = v.rows(),
                       .batch = batch.view(),
                       .n_kv_heads = 1,
                       .window = window,
                       .scale = 0.3F});
          return out.values();
        },
        32 * kRounding);
  }
}

TEST(CpuSparseAttention, EqualsTheReferenceAndIgnoresCuts) {
  constexpr int64_t kTokens = 300, kRatio = 2;
  for (const int64_t d : {24, 512}) {
    for (const int64_t n_heads : {3, 16}) {
      PagedRows window(DType::kF32, d, 20, 1, kTokens), compressed(DType::kF32, d, 10, 1, kTokens / kRatio);
      window.fill(1), compressed.fill(2);
      const int64_t past = 260, n = kTokens - past;
      const F32 q({n, n_heads, d}, normal_values(n * n_heads * d, 3));
      Values sink_values = normal_values(n_heads, 4);
      sink_values[0] = INFINITY, sink_values[1] = -INFINITY;
      const F32 sinks({n_heads}, sink_values);
      I32 selected({n, 100});
      for (int64_t t = 0; t < n; ++t) {
        for (int64_t i = 0; i < 100; ++i)
          selected[t * 100 + i] = i < 60 + t ? static_cast<int32_t>(i + i / 4) : -1;
      }
      for (const int mode : {0, 1, 2}) {  // window only, all compressed rows, selected ones
        const auto compute = [&](Backend& be, int64_t step) {
          F32 out({n, n_heads, d});
          for (int64_t at = 0; at < n; at += step) {
            const int64_t end = std::min(n, at + step);
            const Batch batch({{past + at, end - at}});
            SparseAttention op{.out = out.tensor().slice(0, at, end),
                               .q = q.tensor().slice(0, at, end),
                               .sinks = sinks,
                               .window_rows = window.rows(),
                               .batch = batch.view(),
                               .window = 128,
                               .scale = 1.0F / std::sqrt(static_cast<float>(d))};
            if (mode > 0) op.compressed = compressed.rows(), op.ratio = kRatio;
            if (mode == 2) op.selected = selected.tensor().slice(0, at, end);
            be(op);
          }
          return out.values();
        };
        const Values whole = expect_close([&](Backend& be) { return compute(be, n); }, 80 * kRounding);
        const auto be = make_cpu("", 2);
        for (const int64_t step : {1, 9}) EXPECT_TRUE(same_bits(compute(*be, step), whole));
        EXPECT_EQ(whole[0], 0.0F);  // the infinite sink takes everything
      }
    }
  }
}

}  // namespace
}  // namespace synod
