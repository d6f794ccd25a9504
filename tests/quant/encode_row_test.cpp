// Row encoders against recorded bytes and errors of ggml's quantizers, and what they promise about any input.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "quant/encode.h"
#include "quant/encode_test_data.h"

namespace synod::quant_test {
namespace {

constexpr size_t kColumns = 1024;
constexpr size_t kRows = 6;

// All rows of the recorded matrix.
Bytes encoded(DType type, const std::vector<float>& values, const std::vector<float>& importance,
              const quant::SearchTable& search) {
  Bytes out;
  for (size_t row = 0; row < values.size() / kColumns; ++row) {
    const std::vector<float> x(values.begin() + static_cast<int64_t>(row * kColumns),
                               values.begin() + static_cast<int64_t>((row + 1) * kColumns));
    const Bytes one = encoded_row(type, x, importance, search);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

TEST(EncodeRow, EqualsRecordedBytesWithEveryTable) {
  const std::vector<float> input = read_floats("input.f32");
  const std::vector<float> importance = read_floats("imatrix.f32");
  ASSERT_EQ(input.size(), kRows * kColumns);
  ASSERT_EQ(importance.size(), kColumns);
  for (const quant::SearchTable* search : quant::available_searches()) {
    for (const DType type : kExactTypes) {
      EXPECT_EQ(encoded(type, input, {}, *search), read_data(std::string(name(type)) + ".bin"))
          << name(type) << ' ' << search->name;
      EXPECT_EQ(encoded(type, input, importance, *search),
                read_data(std::string(name(type)) + ".imatrix.bin"))
          << name(type) << " with importance, " << search->name;
    }
  }
}

// Squared errors of a matrix under two weightings: as an expected output error, sum importance e^2, and as
// the encoders weight it, sum importance sqrt(variance + x^2) e^2.
struct WeightedErrors {
  double plain = 0;
  double shaped = 0;
};

WeightedErrors weighted_errors(const std::vector<float>& x, const std::vector<float>& y,
                               const std::vector<float>& importance) {
  WeightedErrors sum;
  for (size_t block = 0; block < x.size(); block += 256) {
    double variance = 0;
    for (size_t i = block; i < block + 256; ++i) variance += std::pow(x[i], 2) / 256;
    for (size_t i = block; i < block + 256; ++i) {
      const double w = importance.empty() ? 1.0 : static_cast<double>(importance[i % kColumns]);
      const double e2 = std::pow(static_cast<double>(y[i]) - static_cast<double>(x[i]), 2);
      sum.plain += w * e2;
      sum.shaped += w * std::sqrt(variance + std::pow(x[i], 2)) * e2;
    }
  }
  return sum;
}

TEST(EncodeRow, CodebookTypesErrLessThanTheRecordedFiles) {
  const std::vector<float> input = read_floats("input.f32");
  const std::vector<float> importance = read_floats("imatrix.f32");
  for (const DType type : kCodebookTypes) {
    for (const bool weighted : {false, true}) {
      // ggml writes three of them only with importance.
      const bool recorded = type != DType::kIQ1_S && type != DType::kIQ2_XXS && type != DType::kIQ2_XS;
      if (!weighted && !recorded) continue;
      const std::vector<float> w = weighted ? importance : std::vector<float>();
      const std::string file = std::string(name(type)) + (weighted ? ".imatrix" : "");
      const WeightedErrors want = weighted_errors(input, decoded(type, read_data(file + ".bin")), w);
      const Bytes bytes = encoded(type, input, w, *quant::available_searches().back());
      const WeightedErrors got = weighted_errors(input, decoded(type, bytes), w);
      std::printf("  %-16s error / recorded error: %.4f weighted, %.4f with the weights of the search\n",
                  file.c_str(), got.plain / want.plain, got.shaped / want.shaped);
      EXPECT_LE(got.plain, want.plain) << file;
      EXPECT_LE(got.shaped, want.shaped) << file;
    }
  }
}

// Root-mean-square error relative to that of the values, on normally distributed weights. The figures are
// 5 % above what the types reach; a wrong scale, sign or order of codes is far outside.
TEST(EncodeRow, ErrorsOfNormalWeightsMatchTheWidthOfTheType) {
  const std::vector<std::pair<DType, double>> limits = {
      {DType::kQ4_0, 0.0892},   {DType::kQ4_1, 0.082},   {DType::kQ5_0, 0.0435},   {DType::kQ5_1, 0.0393},
      {DType::kQ8_0, 0.00547},  {DType::kQ2_K, 0.309},   {DType::kQ3_K, 0.157},    {DType::kQ4_K, 0.0752},
      {DType::kQ5_K, 0.0375},   {DType::kQ6_K, 0.0185},  {DType::kIQ4_NL, 0.0783}, {DType::kIQ4_XS, 0.0788},
      {DType::kMXFP4, 0.119},   {DType::kNVFP4, 0.108},  {DType::kIQ1_S, 0.502},   {DType::kIQ1_M, 0.464},
      {DType::kIQ2_XXS, 0.358}, {DType::kIQ2_XS, 0.31},  {DType::kIQ2_S, 0.255},   {DType::kIQ3_XXS, 0.193},
      {DType::kIQ3_S, 0.141},   {DType::kBF16, 0.00175}, {DType::kF16, 0.000218}};
  const std::vector<float> x = normal_row(4096, 0.02F, 11);
  for (const auto& [type, limit] : limits) {
    const std::vector<float> y = decoded(type, encoded_row(type, x, {}));
    double error = 0;
    double power = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      error += std::pow(static_cast<double>(y[i]) - static_cast<double>(x[i]), 2);
      power += std::pow(x[i], 2);
    }
    EXPECT_LE(std::sqrt(error / power), limit) << name(type);
    EXPECT_GE(std::sqrt(error / power), limit * 0.9) << name(type) << ": better than the type can be?";
  }
}

TEST(EncodeRow, ImportanceMovesTheErrorToColumnsThatDoNotCount) {
  const std::vector<float> x = normal_row(2048, 0.02F, 12);
  std::vector<float> importance(x.size());
  for (size_t i = 0; i < x.size(); ++i) importance[i] = i % 2 == 0 ? 10.0F : 0.01F;
  for (const DType type : kAllTypes) {
    if (!uses_importance(type)) continue;
    double even[2] = {};
    for (const bool weighted : {false, true}) {
      const std::vector<float> y =
          decoded(type, encoded_row(type, x, weighted ? importance : std::vector<float>()));
      for (size_t i = 0; i < x.size(); i += 2) even[weighted ? 1 : 0] += std::pow(y[i] - x[i], 2);
    }
    EXPECT_LT(even[1], even[0]) << name(type);
  }
}

TEST(EncodeRow, ZerosDecodeToZeros) {
  const std::vector<float> x(1024, 0.0F);
  for (const DType type : kAllTypes) {
    for (const float v : decoded(type, encoded_row(type, x, {}))) ASSERT_EQ(v, 0.0F) << name(type);
  }
}

TEST(EncodeRow, NvFp4BelowItsSmallestScaleIsAllZeroBytes) {
  std::vector<float> x(64, 1e-4F);  // a scale of 1e-4 / 6 rounds to code 0
  x[3] = -1e-4F;
  EXPECT_EQ(encoded_row(DType::kNVFP4, x, {}), Bytes(36));
}

// The codebooks of IQ2 and IQ3 have no zero, but their smallest scale makes it small.
TEST(EncodeRow, AZeroGroupAmongOthersStaysNearZero) {
  std::vector<float> x = normal_row(256, 0.02F, 18);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0F);
  for (const DType type : kAllTypes) {
    const std::vector<float> y = decoded(type, encoded_row(type, x, {}));
    for (size_t i = 32; i < 64; ++i) EXPECT_LE(std::fabs(y[i]), 0.002F) << name(type) << ' ' << i;
  }
}

// One large value per row: the type must keep it and nothing else may grow.
TEST(EncodeRow, KeepsASingleOutlierOfEitherSign) {
  for (const DType type : kAllTypes) {
    for (const float outlier : {3.0F, -3.0F}) {
      std::vector<float> x(512, 0.0F);
      x[77] = outlier;
      const std::vector<float> y = decoded(type, encoded_row(type, x, {}));
      const float kept = y[77] / outlier;
      EXPECT_GE(kept, 0.4F) << name(type);
      EXPECT_LE(kept, 1.1F) << name(type);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_LE(std::fabs(i == 77 ? 0.0F : y[i]), 1.6F) << name(type) << ' ' << i;
      }
    }
  }
}

TEST(EncodeRow, NamesRowAndColumnOfABadWeight) {
  for (const DType type : kAllTypes) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = normal_row(512, 1.0F, 13);
      x[300] = bad;
      Bytes out(static_cast<size_t>(row_bytes(type, 512)));
      try {
        encode_row(type, x, {}, out.data(), 42);
        FAIL() << name(type) << " accepted " << bad;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), Error::Kind::kNumeric);
        const std::string message = e.what();
        EXPECT_NE(message.find("row 42, column 300"), std::string::npos) << message;
        EXPECT_NE(message.find(name(type)), std::string::npos) << message;
      }
    }
  }
}

TEST(EncodeRow, RefusesWeightsThatNoScaleReaches) {
  for (const DType type : kAllTypes) {
    std::vector<float> x = normal_row(512, 1.0F, 14);
    x[300] = 1e30F;
    if (type == DType::kBF16 || type == DType::kMXFP4 || type == DType::kNVFP4) {
      EXPECT_NO_THROW(encoded_row(type, x, {})) << name(type);
    } else {
      EXPECT_THROW(encoded_row(type, x, {}), Error) << name(type);
    }
  }
}

TEST(EncodeRow, ChecksShapes) {
  Bytes out(4096);
  const auto kind_of = [&](DType type, const std::vector<float>& x, const std::vector<float>& importance) {
    try {
      encode_row(type, x, importance, out.data());
    } catch (const Error& e) {
      return e.kind();
    }
    return Error::Kind::kFailure;
  };
  const std::vector<float> x(512, 1.0F);
  EXPECT_EQ(kind_of(DType::kQ4_K, x, std::vector<float>(511, 1.0F)), Error::Kind::kUsage);
  EXPECT_EQ(kind_of(DType::kQ8_0, x, std::vector<float>(513, 1.0F)), Error::Kind::kUsage);
  EXPECT_EQ(kind_of(DType::kQ4_K, std::vector<float>(288, 1.0F), {}), Error::Kind::kUsage);
  EXPECT_EQ(kind_of(DType::kI32, x, {}), Error::Kind::kUsage);
  EXPECT_EQ(kind_of(DType::kQ8_K, x, {}), Error::Kind::kUsage);
  for (const DType type : kAllTypes) EXPECT_TRUE(can_encode_row(type)) << name(type);
  EXPECT_FALSE(can_encode_row(DType::kQ8_1));
  EXPECT_FALSE(can_encode_row(DType::kF8E8M0));
}

TEST(EncodeRow, UnusableImportanceCountsAsNone) {
  const std::vector<float> x = normal_row(512, 0.1F, 15);
  const auto use_of = [&](const std::vector<float>& importance) {
    Bytes out(static_cast<size_t>(row_bytes(DType::kQ4_K, 512)));
    const ImportanceUse use = encode_row(DType::kQ4_K, x, importance, out.data());
    EXPECT_EQ(use, check_importance(importance));
    const bool as_none = out == encoded_row(DType::kQ4_K, x, {});
    EXPECT_EQ(as_none, use != ImportanceUse::kUsed);
    return use;
  };
  std::vector<float> importance(512, 1.0F);
  EXPECT_EQ(use_of({}), ImportanceUse::kNone);
  EXPECT_EQ(use_of(importance), ImportanceUse::kUsed);
  importance[3] = 0.0F;
  EXPECT_EQ(use_of(importance), ImportanceUse::kUsed);
  importance[511] = -1.0F;
  EXPECT_EQ(use_of(importance), ImportanceUse::kNegative);
  importance[511] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(use_of(importance), ImportanceUse::kNotFinite);
  importance[511] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(use_of(importance), ImportanceUse::kNotFinite);
  EXPECT_EQ(use_of(std::vector<float>(512, 0.0F)), ImportanceUse::kAllZero);
  EXPECT_TRUE(is_rejected(ImportanceUse::kNegative));
  EXPECT_FALSE(is_rejected(ImportanceUse::kUsed));
}

TEST(EncodeRow, ImportanceOfHalfOfTheColumnsGivesValidBlocks) {
  const std::vector<float> x = normal_row(1024, 0.02F, 16);
  std::vector<float> importance(x.size(), 0.0F);
  for (size_t i = 0; i < 512; ++i) importance[i] = 1.0F;  // whole blocks without any importance follow
  for (const DType type : kAllTypes) {
    const Bytes bytes = encoded_row(type, x, importance);
    EXPECT_EQ(validate_blocks(type, bytes), -1) << name(type);
    for (const float v : decoded(type, bytes)) ASSERT_LE(std::fabs(v), 0.2F) << name(type);
  }
}

TEST(ValidateBlocks, FindsTheFirstBadBlock) {
  for (const DType type : kAllTypes) {
    const int64_t width = info(type).block_bytes;
    const std::vector<float> x = normal_row(1024, 0.02F, 17);
    Bytes bytes = encoded_row(type, x, {});
    EXPECT_EQ(validate_blocks(type, bytes), -1) << name(type);
    EXPECT_EQ(validate_blocks(type, {}), -1);
    // All bits set make every scale of every type infinite, NaN or reserved.
    std::fill(bytes.begin() + 2 * width, bytes.begin() + 3 * width, std::byte{0xff});
    EXPECT_EQ(validate_blocks(type, bytes), 2) << name(type);
  }
  EXPECT_EQ(validate_blocks(DType::kF16, from_hex("003c007cff7b")), 1);  // 1, infinity, 65504
  EXPECT_EQ(validate_blocks(DType::kBF16, from_hex("807f803f")), 0);     // infinity, 1
}

}  // namespace
}  // namespace synod::quant_test
