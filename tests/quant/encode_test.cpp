// The encoders of the types that conversion writes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "quant/quant_test_data.h"

namespace synod::quant_test {
namespace {

Bytes encoded(DType type, const std::vector<float>& values) {
  Bytes out(static_cast<size_t>(row_bytes(type, static_cast<int64_t>(values.size()))));
  encode(type, values.data(), static_cast<int64_t>(values.size()), out.data());
  return out;
}

TEST(Encode, EqualsRecordedBytes) {
  const std::vector<float> input = read_floats("input.f32");
  ASSERT_EQ(input.size(), 6U * 1024U);
  EXPECT_EQ(encoded(DType::kF32, input), read_data("input.f32"));
  for (const DType type : {DType::kF16, DType::kBF16, DType::kQ8_0}) {
    EXPECT_EQ(encoded(type, input), read_data(std::string(name(type)) + ".bin")) << name(type);
    // None of the three uses importance weights.
    EXPECT_EQ(encoded(type, input), read_data(std::string(name(type)) + ".imatrix.bin")) << name(type);
  }
}

TEST(Encode, Q8_0EqualsThePublishedVector) {
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(37 * i % 101) - 50) / 64.0F;
  EXPECT_EQ(encoded(DType::kQ8_0, x),
            from_hex("4d1e81df3d9af856b41270cd2b89e745a2005ebb1977d53390ee4caa0866c3217fdc"));
}

TEST(Encode, Q8_0RoundsHalvesAwayFromZero) {
  std::vector<float> x(32, 0.0F);
  x[0] = 127.0F;  // d = 1
  x[1] = 0.5F;
  x[2] = -0.5F;
  x[3] = 2.5F;
  x[4] = -126.5F;
  const Bytes b = encoded(DType::kQ8_0, x);
  EXPECT_EQ(std::to_integer<int>(b[2]), 127);
  EXPECT_EQ(static_cast<int8_t>(b[3]), 1);
  EXPECT_EQ(static_cast<int8_t>(b[4]), -1);
  EXPECT_EQ(static_cast<int8_t>(b[5]), 3);
  EXPECT_EQ(static_cast<int8_t>(b[6]), -127);
}

TEST(Encode, Q8_0ErrorStaysBelowHalfAStepPlusTheRoundingOfTheScale) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  std::vector<float> x(32 * 64);
  for (float& v : x) v = normal(random);
  const Bytes bytes = encoded(DType::kQ8_0, x);
  const std::vector<float> y = decoded(DType::kQ8_0, bytes);
  for (size_t i = 0; i < x.size(); ++i) {
    float largest = 0;
    for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) largest = std::max(largest, std::fabs(x[j]));
    const float d = largest / 127.0F;
    // f16 rounds d by 2^-11 of itself, 127 codes amplify it; 1e-6 covers the f32 products.
    const float tolerance = d * (0.5F + 127.0F * 0x1p-11F) * (1.0F + 1e-6F) + 127.0F * 0x1p-25F;
    ASSERT_LE(std::fabs(y[i] - x[i]), tolerance) << i;
  }
}

TEST(Encode, Q8_0OfZeroAndOfTinyValuesIsZero) {
  const std::vector<float> zero(32, 0.0F);
  EXPECT_EQ(encoded(DType::kQ8_0, zero), Bytes(34));
  std::vector<float> tiny(32, 1e-40F);  // the reciprocal of the scale overflows
  tiny[5] = -1e-40F;
  EXPECT_EQ(encoded(DType::kQ8_0, tiny), Bytes(34));
}

TEST(Encode, Q8_0RefusesValuesWithoutAFiniteScale) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e8F}) {
    std::vector<float> x(32, 1.0F);
    x[31] = bad;
    EXPECT_THROW(encoded(DType::kQ8_0, x), Error) << bad;
  }
  std::vector<float> x(32, 1.0F);
  x[3] = -65504.0F * 127.0F;
  const Bytes b = encoded(DType::kQ8_0, x);
  EXPECT_TRUE(valid_blocks(DType::kQ8_0, b, nullptr));
}

// Halfway between two codes the even one wins; one f32 step to either side the nearer.
TEST(Encode, HalvesRoundToNearestEven) {
  std::mt19937 random(3);
  for (int n = 0; n < 20000; ++n) {
    const auto low = static_cast<uint16_t>(random() % 0x7bff);
    const double a = f16_to_f32(low);
    const double b = f16_to_f32(static_cast<uint16_t>(low + 1));
    const auto middle = static_cast<float>((a + b) / 2);  // exact: one bit more than f16
    const auto even = static_cast<uint16_t>(low % 2 == 0 ? low : low + 1);
    EXPECT_EQ(f32_to_f16(middle), even);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0F)), low);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 1e9F)), low + 1);
    EXPECT_EQ(f32_to_f16(-middle), even | 0x8000);
  }
  EXPECT_EQ(f32_to_bf16(1.00390625F), 0x3f80);  // a tie: 1 + 2^-8
  EXPECT_EQ(f32_to_bf16(1.01171875F), 0x3f82);
}

TEST(Encode, OffersOnlyTheTypesThatConversionWrites) {
  int n_encoders = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const std::optional<DType> type = dtype_from_ggml_id(id);
    if (!type) continue;
    EXPECT_TRUE(can_decode(*type)) << name(*type);
    n_encoders += can_encode(*type) ? 1 : 0;
  }
  EXPECT_EQ(n_encoders, 4);
  EXPECT_TRUE(can_encode(DType::kQ8_0));
  EXPECT_FALSE(can_encode(DType::kQ4_K));
}

}  // namespace
}  // namespace synod::quant_test
