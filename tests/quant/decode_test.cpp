// Every decoder against recorded bits, hand-computed vectors and its own text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "quant/iq_tables.h"
#include "quant/quant_test_data.h"

namespace synod::quant_test {
namespace {

nlohmann::json read_json(const std::string& name) {
  const Bytes bytes = read_data(name);
  const auto* text = reinterpret_cast<const char*>(bytes.data());
  return nlohmann::json::parse(text, text + bytes.size());
}

// 64-bit FNV-1a over the bytes of the values, as in decoded.txt.
std::string fingerprint(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const std::byte b : std::as_bytes(std::span(values))) {
    hash = (hash ^ std::to_integer<uint64_t>(b)) * 0x100000001b3U;
  }
  return fmt::format("{:016x}", hash);
}

// "q4_0.imatrix" -> fingerprint of what ggml decodes that file to.
std::map<std::string, std::string> recorded_fingerprints() {
  std::ifstream in(SYNOD_SOURCE_DIR "/tests/data/quant/decoded.txt");
  std::map<std::string, std::string> recorded;
  std::string comment, stem, value;
  std::getline(in, comment);
  while (in >> stem >> value) recorded[stem] = value;
  return recorded;
}

void expect_file_decodes(DType type, const std::string& stem, const std::string& recorded) {
  const Bytes blocks = read_data(stem + ".bin");
  const std::vector<float> want = decoded(type, blocks);
  EXPECT_EQ(fingerprint(want), recorded)
      << stem << ": first values " << want[0] << ", " << want[1] << ", " << want[2];
  EXPECT_TRUE(valid_blocks(type, blocks, nullptr)) << stem;

  Bytes shifted(blocks.size() + 1);
  std::memcpy(shifted.data() + 1, blocks.data(), blocks.size());
  std::vector<float> out(want.size());
  decode(type, shifted.data() + 1, static_cast<int64_t>(out.size()), out.data());
  expect_same_bits(out, want, stem + " at an odd address");
}

TEST(Decode, EqualsRecordedBitsForEveryRecordedType) {
  const nlohmann::json types = read_json("types.json").at("types");
  EXPECT_EQ(types.size(), 25U);
  const std::map<std::string, std::string> recorded = recorded_fingerprints();
  EXPECT_EQ(recorded.size(), 47U);
  for (const nlohmann::json& row : types) {
    const auto type_name = row.at("type").get<std::string>();
    const std::optional<DType> type = dtype_from_name(type_name);
    ASSERT_TRUE(type.has_value()) << type_name;
    EXPECT_EQ(info(*type).block_bytes, row.at("bytes").get<int64_t>()) << type_name;
    for (const std::string& stem : {type_name, type_name + ".imatrix"}) {
      if (stem == type_name && row.at("requires_imatrix").get<bool>()) continue;
      ASSERT_TRUE(recorded.contains(stem)) << stem;
      expect_file_decodes(*type, stem, recorded.at(stem));
    }
  }
}

struct PatternVector {
  DType type;
  double first, second, eighteenth, last, sum, sum_of_squares;
};

TEST(Decode, EqualsTheVectorsOfThePatternBlock) {
  const PatternVector vectors[] = {
      {DType::kQ4_0, -3, 2, -1, 0, -21, 645},
      {DType::kQ4_1, 15.5, 4.5, 12.5, 12.5, 261, 2780},
      {DType::kQ5_0, 9, -2, 0, 1, 15, 2627},
      {DType::kQ5_1, 19.5, 24.5, 5.5, 5.5, 521, 11298},
      {DType::kQ8_0, 85, 122, -54, -48, -176, 190256},
      {DType::kQ2_K, 33, 0, -1.5, 4.5, 2059, 54476},
      {DType::kQ3_K, 81, -108, 128, 42, 958, 568706},
      {DType::kQ4_K, 315.5, -25.5, -25.5, 48.5, 54440, 24165220},
      {DType::kQ5_K, 811.5, -25.5, -25.5, 108.5, 116216, 102828820},
      {DType::kQ6_K, -1431, 1696, 512, -60, 4612, 473900260},
      {DType::kTQ1_0, -1, -1, 0, -1, -2, 174},
      {DType::kTQ2_0, 2, -1, -1, -1, 129, 389},
      {DType::kIQ2_XXS, -59.125, 59.125, 59.125, -80.625, 763.75, 770564.1875},
      {DType::kIQ2_XS, -11, 34.375, -19, -19, 1490.5, 822661.8125},
      {DType::kIQ2_S, -145.125, 84.375, -123.625, 78.125, -800.625, 678246.046875},
      {DType::kIQ3_XXS, -13, 9, -1, -15, -684, 3704470.5},
      {DType::kIQ3_S, -81, 243, -243, 225, 1456, 5396216},
      {DType::kIQ4_NL, -35, 25, -10, 1, -257, 134293},
      {DType::kIQ4_XS, 65, -1, 35, -16, -11005, 242991357},
      {DType::kIQ1_S, -2.625, 0.375, -2.625, -4.375, 20, 13116},
      {DType::kIQ1_M, -0.875, 6.125, 1.875, -1.875, 41, 10723.75},
      {DType::kMXFP4, 0, 3, 3, 3, 12.5, 284.25},
      {DType::kNVFP4, -6, 2, -1, 0.0009765625, -37.489257812, 711.250508308},
      {DType::kQ1_0, 1, -1, 1, 1, 0, 128},
      {DType::kQ2_0, 0, 0, 1, 1, 30, 94},
  };
  for (const PatternVector& v : vectors) {
    SCOPED_TRACE(name(v.type));
    const std::vector<float> y = decoded(v.type, pattern_block(v.type));
    double sum = 0;
    double sum_of_squares = 0;
    for (const float value : y) {
      sum += value;
      sum_of_squares += static_cast<double>(value) * value;
    }
    EXPECT_EQ(y[0], v.first);
    EXPECT_EQ(y[1], v.second);
    EXPECT_EQ(y[17], v.eighteenth);
    EXPECT_EQ(y.back(), v.last);
    EXPECT_NEAR(sum, v.sum, 1e-9);  // the table prints nine decimals; all other sums are exact
    EXPECT_NEAR(sum_of_squares, v.sum_of_squares, 1e-9);
  }
}

TEST(Decode, ReadsActivationBlocks) {
  Bytes q8_1(2 * 36);
  Bytes q8_k(292);
  for (size_t i = 0; i < 32; ++i) {
    q8_1[4 + i] = static_cast<std::byte>(static_cast<int>(i) - 16);
    q8_1[36 + 4 + i] = static_cast<std::byte>(-128 + static_cast<int>(i));
  }
  put(q8_1, 0, uint16_t{0x3400});   // 0.25
  put(q8_1, 36, uint16_t{0xc000});  // -2
  for (size_t i = 0; i < 256; ++i) q8_k[4 + i] = static_cast<std::byte>(i);
  put(q8_k, 0, 0.1F);

  const std::vector<float> y1 = decoded(DType::kQ8_1, q8_1);
  const std::vector<float> yk = decoded(DType::kQ8_K, q8_k);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(y1[static_cast<size_t>(i)], 0.25F * static_cast<float>(i - 16));
    EXPECT_EQ(y1[static_cast<size_t>(32 + i)], -2.0F * static_cast<float>(i - 128));
  }
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(yk[static_cast<size_t>(i)], 0.1F * static_cast<float>(i < 128 ? i : i - 256));
  }
}

template <typename T>
void expect_plain(DType type, const std::vector<T>& stored, const std::vector<float>& want) {
  Bytes bytes(stored.size() * sizeof(T));
  std::memcpy(bytes.data(), stored.data(), bytes.size());
  expect_same_bits(decoded(type, bytes), want, std::string(name(type)));
}

TEST(Decode, ConvertsPlainTypes) {
  expect_plain<double>(DType::kF64, {0.1, -3.0, 1e300}, {0.1F, -3.0F, INFINITY});
  expect_plain<int8_t>(DType::kI8, {-128, 0, 127}, {-128.0F, 0.0F, 127.0F});
  expect_plain<int16_t>(DType::kI16, {-32768, 1}, {-32768.0F, 1.0F});
  expect_plain<int32_t>(DType::kI32, {-2, 16777217}, {-2.0F, 16777216.0F});
  expect_plain<int64_t>(DType::kI64, {-(int64_t{1} << 40), 7}, {-0x1p40F, 7.0F});
  expect_plain<uint8_t>(DType::kU8, {0, 255}, {0.0F, 255.0F});
  expect_plain<uint16_t>(DType::kU16, {65535}, {65535.0F});
  expect_plain<uint32_t>(DType::kU32, {4294967295U}, {4294967296.0F});
  expect_plain<uint64_t>(DType::kU64, {uint64_t{1} << 63}, {0x1p63F});
  expect_plain<uint8_t>(DType::kBool, {0, 1}, {0.0F, 1.0F});
  expect_plain<uint8_t>(DType::kF8E5M2, {0x00, 0x01, 0x3c, 0xc1, 0x7b, 0x7c},
                        {0.0F, 0x1p-16F, 1.0F, -2.5F, 57344.0F, INFINITY});
  expect_plain<uint8_t>(DType::kF8E4M3, {0x00, 0x38, 0xfe, 0x01}, {0.0F, 1.0F, -448.0F, 0x1p-9F});
  expect_plain<uint8_t>(DType::kF8E8M0, {0, 127, 254}, {0x1p-127F, 1.0F, 0x1p127F});
  expect_plain<uint16_t>(DType::kBF16, {0x3f80, 0x0001, 0xff80}, {1.0F, 0x1p-133F, -INFINITY});
}

TEST(Decode, ConvertsEveryF16) {
  for (int code = 0; code < 0x10000; ++code) {
    const int exponent = code >> 10 & 31;
    const int mantissa = code & 1023;
    double want = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) want = mantissa == 0 ? INFINITY : NAN;
    if ((code & 0x8000) != 0) want = -want;
    Bytes bytes(2);
    put(bytes, 0, static_cast<uint16_t>(code));
    const float got = decoded(DType::kF16, bytes)[0];
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, want) << code;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << code;
    }
  }
}

TEST(Decode, EdgeScalesOfFourBitFloatsAreSubnormalOrZero) {
  Bytes mx(17, std::byte{0x87});  // low nibble 7: 12 doubled; high nibble 8: +0
  mx[0] = std::byte{0};
  EXPECT_EQ(decoded(DType::kMXFP4, mx)[0], 0x1p-128F * 12);
  EXPECT_FALSE(std::signbit(decoded(DType::kMXFP4, mx)[16]));
  mx[0] = std::byte{1};
  EXPECT_EQ(decoded(DType::kMXFP4, mx)[0], 0x1p-127F * 12);

  Bytes nv(36, std::byte{0x22});  // doubled value 2
  put(nv, 0, uint32_t{0x7f010007});
  const std::vector<float> y = decoded(DType::kNVFP4, nv);
  EXPECT_EQ(y[0], 7 * 0x1p-9F);
  EXPECT_EQ(y[16], 0.0F);
  EXPECT_EQ(y[32], 0x1p-9F);
  EXPECT_EQ(y[48], 0.0F);
}

TEST(ValidBlocks, FindsTheFirstBlockWithANonFiniteF16Scale) {
  for (const F16Fields& f : f16_fields()) {
    SCOPED_TRACE(name(f.type));
    const Bytes block = pattern_block(f.type);
    Bytes blocks;
    for (int i = 0; i < 3; ++i) blocks.insert(blocks.end(), block.begin(), block.end());
    int64_t bad = -1;
    EXPECT_TRUE(valid_blocks(f.type, blocks, &bad));
    for (const size_t offset : f.offsets) {
      for (const uint16_t value : {0x7c00, 0xfc00, 0x7e01, 0xffff}) {
        Bytes damaged = blocks;
        put(damaged, 2 * block.size() + offset, value);
        EXPECT_FALSE(valid_blocks(f.type, damaged, &bad));
        EXPECT_EQ(bad, 2);
        put(damaged, block.size() + offset, value);
        EXPECT_FALSE(valid_blocks(f.type, damaged, &bad));
        EXPECT_EQ(bad, 1);
      }
      Bytes largest = blocks;
      put(largest, offset, uint16_t{0x7bff});
      EXPECT_TRUE(valid_blocks(f.type, largest, &bad));
    }
  }
}

TEST(ValidBlocks, RefusesScalesThatNoWriterMakes) {
  int64_t bad = -1;
  Bytes mx(2 * 17);
  mx[17] = std::byte{254};
  EXPECT_TRUE(valid_blocks(DType::kMXFP4, mx, &bad));
  mx[17] = std::byte{255};
  EXPECT_FALSE(valid_blocks(DType::kMXFP4, mx, &bad));
  EXPECT_EQ(bad, 1);

  for (size_t s = 0; s < 4; ++s) {
    Bytes nv(36);
    nv[s] = std::byte{0x7e};
    EXPECT_TRUE(valid_blocks(DType::kNVFP4, nv, &bad));
    for (const int code : {0x7f, 0x80, 0xff}) {
      nv[s] = static_cast<std::byte>(code);
      EXPECT_FALSE(valid_blocks(DType::kNVFP4, nv, &bad)) << code;
    }
  }

  Bytes iq1_m = pattern_block(DType::kIQ1_M);
  EXPECT_TRUE(valid_blocks(DType::kIQ1_M, iq1_m, &bad));
  iq1_m[53] |= std::byte{0xc0};
  iq1_m[55] |= std::byte{0x70};
  EXPECT_FALSE(valid_blocks(DType::kIQ1_M, iq1_m, &bad));

  Bytes q8_k(292);
  put(q8_k, 0, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(valid_blocks(DType::kQ8_K, q8_k, &bad));

  EXPECT_FALSE(valid_blocks(DType::kF8E4M3, from_hex("007e7f"), &bad));
  EXPECT_EQ(bad, 2);
  EXPECT_FALSE(valid_blocks(DType::kF8E4M3, from_hex("ff"), &bad));
  EXPECT_FALSE(valid_blocks(DType::kF8E8M0, from_hex("00feff"), &bad));
  EXPECT_EQ(bad, 2);
  EXPECT_TRUE(valid_blocks(DType::kF32, {}, &bad));
}

template <typename Word, size_t kEntries>
void expect_grid(const nlohmann::json& rows, const std::array<Word, kEntries>& grid) {
  ASSERT_EQ(rows.size(), kEntries);
  for (size_t r = 0; r < kEntries; ++r) {
    ASSERT_EQ(rows[r].size(), sizeof(Word));
    for (size_t j = 0; j < sizeof(Word); ++j) {
      ASSERT_EQ(static_cast<int8_t>(grid[r] >> (8 * j)), rows[r][j].get<int>()) << r << " " << j;
    }
  }
}

TEST(IqTables, EqualTheRecordedCodebooks) {
  const nlohmann::json grids = read_json("iq_grids.json");
  expect_grid(grids.at("iq2_xxs"), kIq2XxsGrid);
  expect_grid(grids.at("iq2_xs"), kIq2XsGrid);
  expect_grid(grids.at("iq2_s"), kIq2SGrid);
  expect_grid(grids.at("iq3_xxs"), kIq3XxsGrid);
  expect_grid(grids.at("iq3_s"), kIq3SGrid);
  expect_grid(grids.at("iq1_s"), kIq1Grid);
}

}  // namespace
}  // namespace synod::quant_test
