// Files and hand-made blocks for the tests of src/quant.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "quant/codec.h"

namespace synod::quant_test {

using Bytes = std::vector<std::byte>;

inline Bytes read_data(const std::string& name) {
  std::ifstream file(SYNOD_SOURCE_DIR "/tests/data/quant/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::vector<float> read_floats(const std::string& name) {
  const Bytes bytes = read_data(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

inline Bytes random_bytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() >> 8);
  return bytes;
}

inline Bytes from_hex(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <typename T>
void put(Bytes& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
}

// Equality of bits: tells -0 from 0 and accepts NaN.
inline void expect_same_bits(const std::vector<float>& got, const std::vector<float>& want,
                             const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
        << what << " value " << i << ": got " << got[i] << ", want " << want[i];
  }
}

inline std::vector<float> decoded(DType type, const Bytes& bytes) {
  const auto n_blocks = static_cast<int64_t>(bytes.size()) / info(type).block_bytes;
  std::vector<float> out(static_cast<size_t>(n_blocks * info(type).block_values));
  decode(type, bytes.data(), static_cast<int64_t>(out.size()), out.data());
  return out;
}

// Where a block type keeps its f16 fields.
struct F16Fields {
  DType type;
  std::vector<size_t> offsets;
};

inline const std::vector<F16Fields>& f16_fields() {
  static const std::vector<F16Fields> fields = {
      {DType::kQ4_0, {0}},    {DType::kQ4_1, {0, 2}}, {DType::kQ5_0, {0}},      {DType::kQ5_1, {0, 2}},
      {DType::kQ8_0, {0}},    {DType::kQ8_1, {0, 2}}, {DType::kQ2_K, {80, 82}}, {DType::kQ3_K, {108}},
      {DType::kQ4_K, {0, 2}}, {DType::kQ5_K, {0, 2}}, {DType::kQ6_K, {208}},    {DType::kIQ2_XXS, {0}},
      {DType::kIQ2_XS, {0}},  {DType::kIQ2_S, {0}},   {DType::kIQ3_XXS, {0}},   {DType::kIQ3_S, {0}},
      {DType::kIQ1_S, {0}},   {DType::kIQ4_NL, {0}},  {DType::kIQ4_XS, {0}},    {DType::kTQ1_0, {52}},
      {DType::kTQ2_0, {64}},  {DType::kQ1_0, {0}},    {DType::kQ2_0, {0}},
  };
  return fields;
}

// A block of bytes (37 k + 11) mod 256 with scales 1 and 0.5.
inline Bytes pattern_block(DType type) {
  Bytes b(static_cast<size_t>(info(type).block_bytes));
  for (size_t k = 0; k < b.size(); ++k) b[k] = static_cast<std::byte>((37 * k + 11) % 256);
  for (const F16Fields& f : f16_fields()) {
    if (f.type != type) continue;
    const uint16_t values[] = {0x3c00, 0x3800};
    for (size_t i = 0; i < f.offsets.size(); ++i) put(b, f.offsets[i], values[i]);
  }
  if (type == DType::kMXFP4) b[0] = std::byte{127};
  if (type == DType::kNVFP4) put(b, 0, uint32_t{0x01403038});
  if (type == DType::kIQ1_M) {  // d = 1.0, its nibbles on top of four words
    const int nibbles[] = {0x0, 0x0, 0xc, 0x3};
    for (size_t k = 0; k < 4; ++k) {
      std::byte& top = b[48 + 2 * k + 1];
      top = (top & std::byte{0x0f}) | static_cast<std::byte>(nibbles[k] << 4);
    }
  }
  return b;
}

}  // namespace synod::quant_test
