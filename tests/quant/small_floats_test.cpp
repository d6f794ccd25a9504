// The 4- and 8-bit floats against their definitions, code by code.
#include "quant/small_floats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "quant/codec.h"

namespace synod {
namespace {

double e4m3_magnitude(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

TEST(E4M3, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float got = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(got)) << code;
      continue;
    }
    EXPECT_EQ(std::fabs(got), e4m3_magnitude(code)) << code;
    EXPECT_EQ(std::signbit(got), code >= 128) << code;
    EXPECT_EQ(f32_to_e4m3(got), code);
  }
  EXPECT_EQ(e4m3_to_f32(0x7e), 448.0F);
}

// Nearest code by search over all of them; an even code wins a tie.
uint8_t nearest_e4m3(float value) {
  int best = 0;
  double best_distance = INFINITY;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::fabs(e4m3_magnitude(code) - std::fabs(static_cast<double>(value)));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

TEST(E4M3, EncodesToTheNearestCodeAroundEveryBoundary) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((e4m3_magnitude(code) + e4m3_magnitude(code + 1)) / 2);
    for (const float v : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 1000.0F)}) {
      EXPECT_EQ(f32_to_e4m3(v), nearest_e4m3(v)) << v;
      EXPECT_EQ(f32_to_e4m3(-v), nearest_e4m3(-v)) << v;
    }
    EXPECT_EQ(f32_to_e4m3(middle) % 2, 0) << middle;
  }
}

TEST(E4M3, EncodesRandomValuesToTheNearestCode) {
  std::mt19937 random(1);
  for (int n = 0; n < 50000; ++n) {
    // Any sign and mantissa, exponents from far below the smallest step to above the largest value.
    const uint32_t exponent = 112 + random() % 26;
    const float v = std::bit_cast<float>(static_cast<uint32_t>(random() & 0x807fffffU) | exponent << 23);
    ASSERT_EQ(f32_to_e4m3(v), nearest_e4m3(v)) << v;
  }
}

TEST(E4M3, SaturatesAndKeepsNaN) {
  for (const float v : {448.0F, 449.0F, 464.0F, 480.0F, 1e30F, INFINITY}) {
    EXPECT_EQ(f32_to_e4m3(v), 0x7e) << v;
    EXPECT_EQ(f32_to_e4m3(-v), 0xfe) << v;
  }
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(f32_to_e4m3(0.0F), 0x00);
  EXPECT_EQ(f32_to_e4m3(-0.0F), 0x80);
  EXPECT_EQ(f32_to_e4m3(1e-40F), 0x00);
}

TEST(E8M0, IsAPowerOfTwoForEveryCodeButTheLast) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_f32(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(e8m0_half(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 128)) << code;
  }
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127F);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(E2M1, DecodesEveryCode) {
  const float magnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (int code = 0; code < 16; ++code) {
    const float got = e2m1_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(std::fabs(got), magnitudes[code & 7]) << code;
    EXPECT_EQ(std::signbit(got), code >= 8) << code;
  }
}

}  // namespace
}  // namespace synod
