#include <gtest/gtest.h>

#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::Batch;
using testing::F32;
using testing::PagedRows;

constexpr int64_t kDim = 3;

// Softmax over the slots (state row, lane) per channel.
std::vector<float> pooled(const PagedRows& state, const std::vector<std::pair<int64_t, int64_t>>& slots,
                          int64_t lanes) {
  std::vector<float> out;
  for (int64_t i = 0; i < kDim; ++i) {
    double mass = 0, sum = 0;
    for (const auto& [token, lane] : slots) {
      const std::vector<float> row = state.get(0, token);
      const double p = std::exp(static_cast<double>(row[static_cast<size_t>((lanes + lane) * kDim + i)]));
      mass += p;
      sum += p * row[static_cast<size_t>(lane * kDim + i)];
    }
    out.push_back(static_cast<float>(sum / mass));
  }
  return out;
}

std::vector<float> run(const PagedRows& state, int64_t past, int64_t n, int64_t ratio, bool overlap) {
  RefBackend be;
  const Batch batch({{past, n}});
  const int64_t n_blocks = closed_blocks(*batch.view(), ratio);
  F32 out({n_blocks, kDim});
  be(CompressPool{
      .out = out, .state = state.rows(), .batch = batch.view(), .ratio = ratio, .overlap = overlap});
  return out.values();
}

TEST(RefCompressPool, WithoutOverlapABlockPoolsItsTokens) {
  PagedRows state(DType::kF32, 2 * kDim, 5, 1, 20);
  state.fill(1);
  const std::vector<float> got = run(state, 3, 9, 4, false);  // blocks 0, 1, 2
  for (int64_t w = 0; w < 3; ++w) {
    const auto want = pooled(state, {{4 * w, 0}, {4 * w + 1, 0}, {4 * w + 2, 0}, {4 * w + 3, 0}}, 1);
    for (int64_t i = 0; i < kDim; ++i) {
      EXPECT_NEAR(got[static_cast<size_t>(w * kDim + i)], want[static_cast<size_t>(i)], 1e-6);
    }
  }
}

TEST(RefCompressPool, WithOverlapTheFirstLaneOfTheBlockBeforeJoins) {
  PagedRows state(DType::kF32, 4 * kDim, 3, 1, 20);
  state.fill(2);
  const std::vector<float> got = run(state, 0, 12, 4, true);
  for (int64_t w = 0; w < 3; ++w) {
    std::vector<std::pair<int64_t, int64_t>> slots;
    for (int64_t t = 4 * w - 4; t < 4 * w; ++t) {
      if (t >= 0) slots.emplace_back(t, 0);
    }
    for (int64_t t = 4 * w; t < 4 * w + 4; ++t) slots.emplace_back(t, 1);
    const auto want = pooled(state, slots, 2);
    for (int64_t i = 0; i < kDim; ++i) {
      EXPECT_NEAR(got[static_cast<size_t>(w * kDim + i)], want[static_cast<size_t>(i)], 1e-6)
          << "block " << w;
    }
  }
}

TEST(RefCompressPool, LaneScoresOfMinusInfinityLeaveFourSlots) {
  PagedRows state(DType::kF32, 4 * kDim, 3, 1, 8);
  state.fill(3);
  for (int64_t t = 0; t < 4; ++t) {
    std::vector<float> row = state.get(0, t);
    for (int64_t i = 0; i < kDim; ++i) row[static_cast<size_t>(2 * kDim + i)] = -INFINITY;
    state.set(0, t, row);
  }
  const std::vector<float> got = run(state, 4, 4, 4, true);
  const auto want = pooled(state, {{4, 1}, {5, 1}, {6, 1}, {7, 1}}, 2);
  for (int64_t i = 0; i < kDim; ++i)
    EXPECT_NEAR(got[static_cast<size_t>(i)], want[static_cast<size_t>(i)], 1e-6);
}

TEST(RefCompressPool, EqualScoresGiveTheMeanEvenWhenLarge) {
  PagedRows state(DType::kF32, 2 * kDim, 4, 1, 4);
  for (int64_t t = 0; t < 4; ++t) {
    const auto v = static_cast<float>(t);
    state.set(0, t, {v, 2 * v, -v, 1000, 1000, 1000});
  }
  EXPECT_EQ(run(state, 0, 4, 4, false), (std::vector<float>{1.5F, 3.0F, -1.5F}));
}

TEST(RefCompressPool, DoesNotDependOnHowThePromptIsCut) {
  for (const bool overlap : {false, true}) {
    PagedRows state(DType::kF32, (overlap ? 4 : 2) * kDim, 5, 1, 24);
    state.fill(4);
    const std::vector<float> whole = run(state, 0, 23, 4, overlap);
    std::vector<float> cut;
    int64_t past = 0;
    for (const int64_t n : {3, 1, 1, 6, 5, 7}) {
      // Only the block before the first open one is needed: earlier pages may be gone.
      const std::vector<float> part = run(state, past, n, 4, overlap);
      cut.insert(cut.end(), part.begin(), part.end());
      past += n;
    }
    EXPECT_EQ(past, 23);
    EXPECT_EQ(cut, whole);
  }
}

TEST(RefCompressPool, ReadsNoPageBeforeTheBlockBefore) {
  PagedRows state(DType::kF32, 4 * kDim, 4, 1, 16);
  state.fill(5);
  const std::vector<float> before = run(state, 12, 4, 4, true);
  state.drop_page(0, 0), state.drop_page(0, 1);
  EXPECT_EQ(run(state, 12, 4, 4, true), before);
}

}  // namespace
}  // namespace synod
