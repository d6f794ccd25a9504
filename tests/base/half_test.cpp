// 16-bit float conversions, every f16 value and every rounding boundary.
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace synod {
namespace {

// From the definition of binary16, in double: independent of the bit tricks under test.
double f16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryF16HasItsValueInF32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    const double expected = f16_value(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << bits;
    }
  }
}

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const uint16_t back = f32_to_f16(f16_to_f32(half));
    const bool nan = (half & 0x7c00U) == 0x7c00U && (half & 0x3ffU) != 0;
    ASSERT_EQ(back, nan ? half | 0x200U : half) << bits;  // NaN becomes quiet
  }
}

TEST(Half, F32ToF16RoundsToNearestTiesToEven) {
  for (uint32_t low = 0; low < 0x7c00; ++low) {  // every neighbouring pair, up to 65504 and infinity
    const double a = f16_value(static_cast<uint16_t>(low));
    const double b = low == 0x7bff ? 65536.0 : f16_value(static_cast<uint16_t>(low + 1));
    const auto middle = static_cast<float>((a + b) / 2);  // exact: one bit more than f16 has
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    const float below = std::nextafter(middle, 0.0F), above = std::nextafter(middle, 1e9F);
    for (const uint32_t sign : {0U, 0x8000U}) {
      const float s = sign == 0 ? 1.0F : -1.0F;
      ASSERT_EQ(f32_to_f16(s * middle), even | sign) << low;
      ASSERT_EQ(f32_to_f16(s * below), low | sign) << low;
      ASSERT_EQ(f32_to_f16(s * above), (low + 1) | sign) << low;
    }
  }
}

TEST(Half, F32ToF16AtTheEnds) {
  EXPECT_EQ(f32_to_f16(1e30F), 0x7c00);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(f32_to_f16(-1e-30F), 0x8000);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  const uint16_t nan =
      f32_to_f16(std::bit_cast<float>(0x7f800001U));  // signalling, payload lost by the shift
  EXPECT_EQ(nan & 0x7e00, 0x7e00);
}

TEST(Half, EveryBf16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = bf16_to_f32(half);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    ASSERT_EQ(f32_to_bf16(value), std::isnan(value) ? half | 0x40U : half) << bits;
  }
}

TEST(Half, F32ToBf16RoundsToNearestTiesToEven) {
  for (uint32_t low = 0; low < 0x7f80; ++low) {
    const uint32_t middle = (low << 16) | 0x8000U;
    const uint32_t even = low % 2 == 0 ? low : low + 1;
    for (const uint32_t sign : {0U, 0x8000U}) {
      const auto f = [&](uint32_t u) { return std::bit_cast<float>(u | (sign << 16)); };
      ASSERT_EQ(f32_to_bf16(f(middle)), even | sign) << low;
      ASSERT_EQ(f32_to_bf16(f(middle - 1)), low | sign) << low;
      ASSERT_EQ(f32_to_bf16(f(middle + 1)), (low + 1) | sign) << low;
    }
  }
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace synod
