// Fused ops equal the composition that their headers state, evaluated here by hand.
#include "ops/lowering.h"

#include <gtest/gtest.h>

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
using testing::StoredMatrix;

TEST(Lowering, ProjectionsAreOneLinearEach) {
  RefBackend be;
  const F32 x({3, 32}, normal_values(96, 1));
  const StoredMatrix a(DType::kF32, 5, 32, 2), b(DType::kQ8_0, 7, 32, 3);
  F32 out_a({3, 5}), out_b({3, 7}), single_a({3, 5}), single_b({3, 7});
  Projections op{.x = x, .n_parts = 2};
  op.parts[0] = {out_a, a};
  op.parts[1] = {out_b, b};
  be(op);
  be(Linear{.out = single_a, .x = x, .weight = a});
  be(Linear{.out = single_b, .x = x, .weight = b});
  EXPECT_EQ(out_a.values(), single_a.values());
  EXPECT_EQ(out_b.values(), single_b.values());
}

TEST(Lowering, EachGroupHasItsOwnRows) {
  RefBackend be;
  const int64_t n_tokens = 3, n_groups = 4, n_in = 16, n_out = 5;
  const F32 x({n_tokens, n_groups, n_in}, normal_values(n_tokens * n_groups * n_in, 1));
  const StoredMatrix w(DType::kF32, n_groups * n_out, n_in, 2);
  F32 out({n_tokens, n_groups, n_out});
  be(GroupedLinear{.out = out, .x = x, .weight = w});
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t g = 0; g < n_groups; ++g) {
      for (int64_t o = 0; o < n_out; ++o) {
        double sum = 0.0;
        for (int64_t i = 0; i < n_in; ++i) sum += x[(t * n_groups + g) * n_in + i] * w.at(g * n_out + o, i);
        EXPECT_NEAR(out[(t * n_groups + g) * n_out + o], sum, 1e-5);
      }
    }
  }
}

struct Experts {
  std::vector<StoredMatrix> stored;
  std::vector<Matrix> matrices;
  Experts(int64_t n, int64_t n_out, int64_t n_in, uint32_t seed) {
    for (int64_t e = 0; e < n; ++e) {
      stored.emplace_back(DType::kF32, n_out, n_in, seed + static_cast<uint32_t>(e), 0.2F);
      matrices.push_back(stored.back());
    }
  }
};

TEST(Lowering, ExpertsAreWeightedAfterDownOrBeforeItWhenRounded) {
  const int64_t n_tokens = 5, k = 2, n_experts = 4, d_model = 32, d_expert = 16;
  const Experts gate(n_experts, d_expert, d_model, 10), up(n_experts, d_expert, d_model, 20),
      down(n_experts, d_model, d_expert, 30);
  const F32 x({n_tokens, d_model}, normal_values(n_tokens * d_model, 1)),
      shared({n_tokens, d_model}, normal_values(160, 2));
  const F32 weights({n_tokens, k}, {.1F, .9F, .5F, .5F, .3F, .7F, 1, 0, .25F, .75F});
  const I32 ids({n_tokens, k}, {0, 1, 1, 3, 0, 3, 2, 3, 0, 2});
  for (const bool rounded : {false, true}) {
    RefBackend be;
    F32 out({n_tokens, d_model});
    be(ExpertFfn{.out = out,
                 .x = x,
                 .ids = ids,
                 .weights = weights,
                 .shared = shared,
                 .gate = gate.matrices,
                 .up = up.matrices,
                 .down = down.matrices,
                 .limit = 1.5F,
                 .round_hidden = rounded});
    for (int64_t t = 0; t < n_tokens; ++t) {
      std::vector<double> want(static_cast<size_t>(d_model));
      for (int64_t i = 0; i < d_model; ++i) want[static_cast<size_t>(i)] = shared[t * d_model + i];
      for (int64_t s = 0; s < k; ++s) {
        const auto e = static_cast<size_t>(ids[t * k + s]);
        F32 hidden({1, d_expert});
        for (int64_t o = 0; o < d_expert; ++o) {
          double g = 0, u = 0;
          for (int64_t i = 0; i < d_model; ++i) {
            g += x[t * d_model + i] * gate.stored[e].at(o, i);
            u += x[t * d_model + i] * up.stored[e].at(o, i);
          }
          g = std::min(g, 1.5), u = std::clamp(u, -1.5, 1.5);
          hidden[o] = static_cast<float>(g / (1 + std::exp(-g)) * u * (rounded ? weights[t * k + s] : 1.0F));
        }
        if (rounded) be(RoundTrip{.out = hidden, .x = hidden, .block = 128, .count = d_expert});
        for (int64_t o = 0; o < d_model; ++o) {
          double sum = 0;
          for (int64_t i = 0; i < d_expert; ++i) sum += hidden[i] * down.stored[e].at(o, i);
          want[static_cast<size_t>(o)] += rounded ? sum : weights[t * k + s] * sum;
        }
      }
      for (int64_t i = 0; i < d_model; ++i) {
        EXPECT_NEAR(out[t * d_model + i], want[static_cast<size_t>(i)], 1e-5)
            << "token " << t << " rounded " << rounded;
      }
    }
  }
}

TEST(Lowering, CompressPoolsNormsRotatesRoundsAndStores) {
  const int64_t d = 32, ratio = 4;
  for (const auto round : {Compress::Round::kNone, Compress::Round::kFp8, Compress::Round::kHadamardFp4}) {
    RefBackend be;
    PagedRows state(DType::kF32, 4 * d, 4, 2, 24), stored(DType::kF32, d, 2, 2, 6),
        by_hand(DType::kF32, d, 2, 2, 6);
    state.fill(5);
    const F32 norm({d}, normal_values(d, 7)), freqs({4}, {1.0F, 0.5F, 0.1F, 0.01F});
    const Batch batch({{6, 7}, {0, 4}});  // blocks 1, 2 of the first and block 0 of the second sequence
    be(Compress{.rows = stored.rows(),
                .state = state.rows(),
                .norm = norm,
                .freqs = freqs,
                .batch = batch.view(),
                .ratio = ratio,
                .overlap = true,
                .round = round,
                .eps = 1e-6F});

    F32 pooled({3, d});
    const I32 positions({3}, {4, 8, 0});
    be(CompressPool{
        .out = pooled, .state = state.rows(), .batch = batch.view(), .ratio = ratio, .overlap = true});
    be(RmsNorm{.out = pooled, .x = pooled, .weight = norm, .eps = 1e-6F});
    be(Rope{.x = pooled,
            .positions = positions,
            .freqs = freqs,
            .layout = Rope::Layout::kInterleaved,
            .first = d - 8});
    if (round == Compress::Round::kFp8)
      be(RoundTrip{.out = pooled, .x = pooled, .block = 64, .count = d - 8});
    if (round == Compress::Round::kHadamardFp4) {
      be(Hadamard{.x = pooled});
      be(RoundTrip{.out = pooled, .x = pooled, .grid = RoundTrip::Grid::kFp4, .block = 32, .count = d});
    }
    be(CacheWrite{.rows = by_hand.rows(), .x = pooled, .batch = batch.view(), .tokens_per_row = ratio});
    EXPECT_EQ(stored.get(0, 1), by_hand.get(0, 1));
    EXPECT_EQ(stored.get(0, 2), by_hand.get(0, 2));
    EXPECT_EQ(stored.get(1, 0), by_hand.get(1, 0));
    EXPECT_NE(stored.get(0, 2), std::vector<float>(static_cast<size_t>(d)));
    EXPECT_EQ(stored.get(0, 0), std::vector<float>(static_cast<size_t>(d))) << "block 0 was closed before";
  }
}

TEST(Lowering, CompressOfNoClosedBlockWritesNothing) {
  RefBackend be;
  PagedRows state(DType::kF32, 2 * 8, 8, 1, 8), stored(DType::kF32, 8, 1, 1, 1);
  const F32 norm({8}, std::vector<float>(8, 1.0F)), freqs({2});
  const Batch batch({{0, 7}});
  be(Compress{.rows = stored.rows(),
              .state = state.rows(),
              .norm = norm,
              .freqs = freqs,
              .batch = batch.view(),
              .ratio = 8});
  EXPECT_EQ(stored.get(0, 0), std::vector<float>(8, 0.0F));
  EXPECT_EQ(be.workspace().peak_bytes(), 0);
}

}  // namespace
}  // namespace synod
