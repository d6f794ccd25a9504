#include <gtest/gtest.h>

#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;

TEST(RefRope, BothLayoutsRotateTheirPairs) {
  RefBackend be;
  const int64_t d = 10, first = 2, n_pairs = 3;
  const F32 freqs({n_pairs}, {1.0F, 0.37F, 0.0F});
  const I32 positions({2}, {5, 1000});
  const std::vector<float> input = normal_values(2 * 2 * d, 1);
  for (const auto layout : {Rope::Layout::kHalves, Rope::Layout::kInterleaved}) {
    F32 x({2, 2, d}, input);
    be(Rope{.x = x, .positions = positions, .freqs = freqs, .layout = layout, .first = first});
    for (int64_t row = 0; row < 4; ++row) {
      std::vector<double> want(input.begin() + row * d, input.begin() + (row + 1) * d);
      for (int64_t i = 0; i < n_pairs; ++i) {
        const bool halves = layout == Rope::Layout::kHalves;
        const auto a = static_cast<size_t>(first + (halves ? i : 2 * i));
        const auto b = static_cast<size_t>(first + (halves ? n_pairs + i : 2 * i + 1));
        const double phase = static_cast<float>(positions[row / 2]) * freqs[i];
        const double va = want[a], vb = want[b];
        want[a] = va * std::cos(phase) - vb * std::sin(phase);
        want[b] = va * std::sin(phase) + vb * std::cos(phase);
      }
      for (int64_t i = 0; i < d; ++i) EXPECT_NEAR(x[row * d + i], want[static_cast<size_t>(i)], 1e-6);
    }
  }
}

TEST(RefRope, InverseUndoesItAndTheNormIsKept) {
  RefBackend be;
  const std::vector<float> input = normal_values(3 * 64, 2);
  F32 x({3, 64}, input);
  const F32 freqs({32}, [] {
    std::vector<float> f;
    for (int i = 0; i < 32; ++i) f.push_back(std::pow(10000.0F, -static_cast<float>(i) / 32));
    return f;
  }());
  const I32 positions({3}, {0, 77, 1048575});
  Rope op{.x = x, .positions = positions, .freqs = freqs, .layout = Rope::Layout::kInterleaved};
  be(op);
  for (int64_t t = 0; t < 3; ++t) {
    double before = 0, after = 0;
    for (int64_t i = 0; i < 64; ++i) {
      before += std::pow(input[static_cast<size_t>(t * 64 + i)], 2.0);
      after += std::pow(x[t * 64 + i], 2.0);
    }
    EXPECT_NEAR(after / before, 1.0, 1e-6);
  }
  EXPECT_NE(x[64], input[64]);
  op.inverse = true;
  be(op);
  for (int64_t i = 0; i < 3 * 64; ++i) EXPECT_NEAR(x[i], input[static_cast<size_t>(i)], 4e-6);
}

TEST(RefRope, ThePhaseIsOneF32Product) {
  // A position where the f32 product is more than 0.02 from the exact one.
  const float freq = 0.68765604F;
  int32_t position = 1048575;
  const auto error = [&] {
    return std::fabs(static_cast<double>(position) * freq -
                     static_cast<double>(static_cast<float>(position) * freq));
  };
  while (error() < 0.02) --position;
  const float phase = static_cast<float>(position) * freq;
  RefBackend be;
  F32 x({1, 2}, {1, 0});
  const F32 freqs({1}, {freq});
  const I32 positions({1}, {position});
  be(Rope{.x = x, .positions = positions, .freqs = freqs});
  EXPECT_FLOAT_EQ(x[0], static_cast<float>(std::cos(static_cast<double>(phase))));
  EXPECT_FLOAT_EQ(x[1], static_cast<float>(std::sin(static_cast<double>(phase))));
  EXPECT_GT(std::fabs(x[0] - std::cos(static_cast<double>(position) * freq)), 1e-3);
}

}  // namespace
}  // namespace synod
