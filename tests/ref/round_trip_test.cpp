#include <gtest/gtest.h>

#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::normal_values;
using Grid = RoundTrip::Grid;

std::vector<float> rounded(Grid grid, std::vector<float> v, int64_t block = 64) {
  RefBackend be;
  const auto n = static_cast<int64_t>(v.size());
  F32 x({1, n}, std::move(v));
  be(RoundTrip{.out = x, .x = x, .grid = grid, .block = block, .count = n});
  return x.values();
}

TEST(RefRoundTrip, Fp8ScalesByPowersOfTwo) {
  EXPECT_EQ(rounded(Grid::kFp8, {3.0F, 0.01F}), (std::vector<float>{3.0F, 0.009765625F}));
}

TEST(RefRoundTrip, Fp8ScaleIsExactAtPowersOfTwo) {
  for (int k = -12; k <= 20; ++k) {
    const float top = std::ldexp(448.0F, k);
    if (top < 1e-4F) continue;
    // With scale 2^k the value 2^(k - 9) is the smallest code; with the next scale it would be half a step.
    const std::vector<float> got = rounded(Grid::kFp8, {top, std::ldexp(1.0F, k - 9)});
    EXPECT_EQ(got[0], top) << k;
    EXPECT_EQ(got[1], std::ldexp(1.0F, k - 9)) << k;
    const std::vector<float> above =
        rounded(Grid::kFp8, {std::nextafter(top, INFINITY), std::ldexp(1.0F, k - 9)});
    EXPECT_EQ(above[1], 0.0F) << k << ": half a step, a tie to the even code 0";
  }
}

TEST(RefRoundTrip, Fp4RoundsTiesToTheEvenCode) {
  EXPECT_EQ(rounded(Grid::kFp4, {5, 2.6F, 2.5F, 0.75F, 0.2F, -0.25F, -1.25F, 1.75F, -3.5F}, 32),
            (std::vector<float>{4, 3, 2, 1, 0, -0.0F, -1, 2, -4}));
  EXPECT_EQ(rounded(Grid::kFp4, {7, 1}, 32), (std::vector<float>{8, 1}));
}

TEST(RefRoundTrip, IsIdempotent) {
  for (const Grid grid : {Grid::kFp8, Grid::kFp4}) {
    const std::vector<float> once = rounded(grid, normal_values(200, 3, 5.0F), 32);
    EXPECT_EQ(rounded(grid, once, 32), once);
    EXPECT_NE(once, normal_values(200, 3, 5.0F));
  }
}

TEST(RefRoundTrip, BlocksAreIndependentAndTheTailIsCopied) {
  RefBackend be;
  std::vector<float> v = normal_values(2 * 100, 4);
  v[40] = 1000.0F;  // second block of the first row
  const F32 x({2, 100}, v);
  F32 out({2, 100});
  be(RoundTrip{.out = out, .x = x, .block = 32, .count = 80});
  for (int64_t r = 0; r < 2; ++r) {
    for (int64_t first = 0; first < 80; first += 32) {  // the third block has 16 values
      const int64_t n = std::min<int64_t>(32, 80 - first);
      const auto begin = v.begin() + r * 100 + first;
      const std::vector<float> block = rounded(Grid::kFp8, std::vector<float>(begin, begin + n));
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[r * 100 + first + i], block[static_cast<size_t>(i)]);
    }
    for (int64_t i = 80; i < 100; ++i) EXPECT_EQ(out[r * 100 + i], x[r * 100 + i]);
  }
}

TEST(RefRoundTrip, TinyAndNonFiniteValues) {
  EXPECT_EQ(rounded(Grid::kFp8, {0.0F, -0.0F, 1e-30F}), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(rounded(Grid::kFp4, {0.0F, 0.0F}), (std::vector<float>{0, 0}));
  for (const Grid grid : {Grid::kFp8, Grid::kFp4}) {
    const std::vector<float> got = rounded(grid, {NAN, 1.0F});
    EXPECT_TRUE(std::isnan(got[0]));
    EXPECT_EQ(got[1], 1.0F);
  }
}

}  // namespace
}  // namespace synod
