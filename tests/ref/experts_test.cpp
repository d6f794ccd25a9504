#include <gtest/gtest.h>

#include "ops/operands.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using testing::F32;
using testing::I32;
using testing::normal_values;
using testing::StoredMatrix;

class ExpertTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 6, kSlots = 2, kExperts = 5, kOut = 9, kIn = 20;
  ExpertTest() {
    for (uint32_t e = 0; e < kExperts; ++e) stored.emplace_back(DType::kF32, kOut, kIn, e);
    for (const StoredMatrix& m : stored) experts.push_back(m);
  }
  std::vector<StoredMatrix> stored;
  std::vector<Matrix> experts;
  I32 ids{{kTokens, kSlots}, {0, 1, 1, 4, 0, 0, 2, 3, 1, 2, 3, 4}};
  RefBackend be;
};

TEST_F(ExpertTest, EachSlotIsTheProductWithItsExpert) {
  for (const bool slotted : {false, true}) {
    const F32 flat({kTokens, kIn}, normal_values(kTokens * kIn, 9));
    const F32 slots({kTokens, kSlots, kIn}, normal_values(kTokens * kSlots * kIn, 9));
    F32 out({kTokens, kSlots, kOut}), one({1, kOut});
    be(ExpertLinear{.out = out, .x = slotted ? slots : flat, .ids = ids, .experts = experts});
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t s = 0; s < kSlots; ++s) {
        const int64_t row = slotted ? t * kSlots + s : t;
        const Tensor x = (slotted ? slots.tensor().reshape({kTokens * kSlots, kIn}) : flat.tensor())
                             .slice(0, row, row + 1);
        be(Linear{.out = one, .x = x, .weight = experts[static_cast<size_t>(ids[t * kSlots + s])]});
        for (int64_t o = 0; o < kOut; ++o) EXPECT_EQ(out[(t * kSlots + s) * kOut + o], one[o]);
      }
    }
  }
}

TEST_F(ExpertTest, AnIdOutOfRangeReadsNothing) {
  const F32 x({kTokens, kIn}, normal_values(kTokens * kIn, 9));
  F32 out({kTokens, kSlots, kOut}, std::vector<float>(kTokens * kSlots * kOut, 9.0F));
  ids[3] = kExperts;
  be(ExpertLinear{.out = out, .x = x, .ids = ids, .experts = experts});
  EXPECT_EQ(out[3 * kOut], 0.0F);
  EXPECT_NE(out[2 * kOut], 9.0F);
  EXPECT_EQ(be.take_status().bits, static_cast<uint32_t>(Status::kBadId));
}

TEST_F(ExpertTest, CombineWeighsSlotsAndAddsTheSharedExpert) {
  const F32 x({1, 2, 3}, {1, 2, 3, 10, 20, 30}), weights({1, 2}, {0.5F, 0.25F}),
      shared({1, 3}, {100, 200, 300});
  F32 out({1, 3});
  be(CombineExperts{.out = out, .x = x, .weights = weights, .shared = shared});
  EXPECT_EQ(out.values(), (std::vector<float>{103, 206, 309}));
  be(CombineExperts{.out = out, .x = x, .weights = weights});
  EXPECT_EQ(out.values(), (std::vector<float>{3, 6, 9}));
  be(CombineExperts{.out = out, .x = x});
  EXPECT_EQ(out.values(), (std::vector<float>{11, 22, 33}));
}

}  // namespace
}  // namespace synod
