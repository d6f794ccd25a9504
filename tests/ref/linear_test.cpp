#include <gtest/gtest.h>

#include <cmath>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;
using testing::StoredMatrix;

TEST(RefLinear, IsTheSumOfProductsForWidthsThatEndMidLane) {
  for (const int64_t n_in : {1, 7, 8, 9, 63, 129}) {
    RefBackend be;
    const F32 x({4, n_in}, normal_values(4 * n_in, 1));
    const StoredMatrix w(DType::kF32, 11, n_in, 2);
    F32 out({4, 11});
    be(Linear{.out = out, .x = x, .weight = w});
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t o = 0; o < 11; ++o) {
        long double sum = 0;
        for (int64_t i = 0; i < n_in; ++i) sum += static_cast<long double>(x[t * n_in + i]) * w.at(o, i);
        EXPECT_FLOAT_EQ(out[t * 11 + o], static_cast<float>(sum)) << "n_in " << n_in;
      }
    }
  }
}

TEST(RefLinear, ReadsEveryStoredType) {
  for (const DType type : {DType::kF16, DType::kBF16, DType::kQ8_0}) {
    RefBackend be;
    const F32 x({2, 64}, normal_values(128, 1));
    const StoredMatrix w(type, 10, 64, 2);
    F32 out({2, 10});
    be(Linear{.out = out, .x = x, .weight = w});
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t o = 0; o < 10; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < 64; ++i) sum += x[t * 64 + i] * w.at(o, i);
        EXPECT_NEAR(out[t * 10 + o], sum, 1e-5) << name(type);
      }
    }
  }
}

TEST(RefLinear, TokensDoNotDependOnTheirBatch) {
  RefBackend be;
  const F32 x({9, 100}, normal_values(900, 1));
  const StoredMatrix w(DType::kF32, 37, 100, 2);
  F32 whole({9, 37}), single({1, 37});
  be(Linear{.out = whole, .x = x, .weight = w});
  for (int64_t t = 0; t < 9; ++t) {
    be(Linear{.out = single, .x = x.tensor().slice(0, t, t + 1), .weight = w});
    for (int64_t o = 0; o < 37; ++o) EXPECT_EQ(single[o], whole[t * 37 + o]);
  }
}

TEST(RefLinear, WorksOnSlicesOfPackedBuffers) {
  RefBackend be;
  const F32 x({3, 24}, normal_values(72, 1));
  const StoredMatrix w(DType::kF32, 5, 8, 2);
  F32 packed({3, 12}), plain({3, 5}), part({3, 8});
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 8; ++i) part[t * 8 + i] = x[t * 24 + 10 + i];
  }
  be(Linear{.out = packed.tensor().slice(1, 4, 9), .x = x.tensor().slice(1, 10, 18), .weight = w});
  be(Linear{.out = plain, .x = part, .weight = w});
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t o = 0; o < 5; ++o) EXPECT_EQ(packed[t * 12 + 4 + o], plain[t * 5 + o]);
    EXPECT_EQ(packed[t * 12 + 3], 0.0F);
    EXPECT_EQ(packed[t * 12 + 9], 0.0F);
  }
}

TEST(RefEmbed, ScalesRowsAndRefusesUnknownIds) {
  RefBackend be;
  const StoredMatrix table(DType::kF32, 3, 2, {1, 2, 3, 4, 5, 6});
  const I32 good({2}, {2, 0}), bad({3}, {0, 3, -1});
  F32 out({2, 2}), bad_out({3, 2}, {9, 9, 9, 9, 9, 9});
  be(Embed{.out = out, .ids = good, .table = table, .scale = 0.5F});
  EXPECT_EQ(out.values(), (std::vector<float>{2.5F, 3.0F, 0.5F, 1.0F}));
  EXPECT_EQ(be.take_status().bits, 0U);
  be(Embed{.out = bad_out, .ids = bad, .table = table});
  EXPECT_EQ(bad_out.values(), (std::vector<float>{1, 2, 0, 0, 0, 0}));
  EXPECT_EQ(be.take_status().bits, static_cast<uint32_t>(Status::kBadId));
}

}  // namespace
}  // namespace synod
