// Every instruction set gives the bits of the scalar contract, whatever the number of tokens and the range of
// rows; the scalar form is as close to a float64 product as its quantized activations allow; nothing reads
// outside a block.
#include "cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "cpu/kernels_test_util.h"

namespace synod::cpu {
namespace {

struct TypeCase {
  DType type;
  std::vector<int64_t> f16_fields;  // byte offsets of f16 factors in a block
};

std::ostream& operator<<(std::ostream& out, const TypeCase& c) { return out << name(c.type); }

std::vector<TypeCase> block_types() {
  return {{DType::kQ4_0, {0}},    {DType::kQ4_1, {0, 2}}, {DType::kQ5_0, {0}},    {DType::kQ5_1, {0, 2}},
          {DType::kQ8_0, {0}},    {DType::kIQ4_NL, {0}},  {DType::kMXFP4, {}},    {DType::kQ2_K, {80, 82}},
          {DType::kQ3_K, {108}},  {DType::kQ4_K, {0, 2}}, {DType::kQ5_K, {0, 2}}, {DType::kQ6_K, {208}},
          {DType::kIQ4_XS, {0}},  {DType::kIQ2_XXS, {0}}, {DType::kIQ2_XS, {0}},  {DType::kIQ2_S, {0}},
          {DType::kIQ3_XXS, {0}}, {DType::kIQ3_S, {0}},   {DType::kIQ1_S, {0}},   {DType::kIQ1_M, {}},
          {DType::kTQ1_0, {52}},  {DType::kTQ2_0, {64}},  {DType::kNVFP4, {}},    {DType::kQ1_0, {0}},
          {DType::kQ2_0, {0}}};
}

std::vector<TypeCase> plain_types() {
  return {{DType::kF32, {}}, {DType::kF16, {}}, {DType::kBF16, {}}, {DType::kF64, {}}};
}

// Scales of every kind: subnormal, zero, negative, ordinary.
uint16_t random_f16(std::mt19937& rng) {
  switch (rng() % 8) {
    case 0:
      return static_cast<uint16_t>(rng() % 0x400);
    case 1:
      return static_cast<uint16_t>(rng() % 2 * 0x8000);
    default:
      return f32_to_f16(std::uniform_real_distribution<float>(-0.1F, 0.1F)(rng));
  }
}

void fill_block(const TypeCase& c, std::mt19937& rng, uint8_t* block) {
  const int64_t bytes = info(c.type).block_bytes;
  constexpr uint8_t kPatterns[] = {0x00, 0xff, 0x80, 0x7f};
  const uint32_t kind = rng() % 12;
  for (int64_t i = 0; i < bytes; ++i) block[i] = kind < 4 ? kPatterns[kind] : static_cast<uint8_t>(rng());
  for (const int64_t field : c.f16_fields) {
    const uint16_t value = random_f16(rng);
    std::memcpy(block + field, &value, sizeof(value));
  }
  if (c.type == DType::kMXFP4) block[0] = static_cast<uint8_t>(rng() % 4 == 0 ? rng() % 4 : 100 + rng() % 50);
  // The factor of IQ1_M is spread over the top nibbles of its last eight bytes.
  if (c.type == DType::kIQ1_M) block[55] = static_cast<uint8_t>((block[55] & 0x8f) | (rng() % 3) << 4);
  if (c.type == DType::kNVFP4) {
    for (int i = 0; i < 4; ++i) block[i] = static_cast<uint8_t>(rng() % 0x7f);
  }
}

void fill_plain(DType type, std::mt19937& rng, int64_t n, uint8_t* out) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) {
    const float value = normal(rng);
    const double wide = value;
    const uint16_t half = type == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    const void* from = type == DType::kF32   ? static_cast<const void*>(&value)
                       : type == DType::kF64 ? static_cast<const void*>(&wide)
                                             : static_cast<const void*>(&half);
    const auto size = static_cast<size_t>(info(type).block_bytes);
    std::memcpy(out + static_cast<size_t>(i) * size, from, size);
  }
}

Matrix matrix_at(const TypeCase& c, int64_t n_out, int64_t n_in, void* data) {
  Matrix m;
  m.storage = is_block_type(c.type) ? Storage::kBlock : Storage::kPlain;
  m.type = c.type;
  m.n_out = n_out;
  m.n_in = n_in;
  m.row_stride = row_bytes(c.type, n_in);
  m.data = static_cast<const std::byte*>(data);
  m.name = name(c.type);
  return m;
}

void fill_matrix(const TypeCase& c, int64_t n_out, int64_t n_in, uint32_t seed, uint8_t* data) {
  std::mt19937 rng(seed);
  if (!is_block_type(c.type)) return fill_plain(c.type, rng, n_out * n_in, data);
  const int64_t blocks = n_out * (n_in / info(c.type).block_values);
  for (int64_t b = 0; b < blocks; ++b) fill_block(c, rng, data + b * info(c.type).block_bytes);
}

struct OwnedMatrix {
  OwnedMatrix(const TypeCase& c, int64_t n_out, int64_t n_in, uint32_t seed = 1)
      : bytes(static_cast<size_t>(n_out * row_bytes(c.type, n_in)) + 1) {
    // From an odd address, as a row may start anywhere in a file.
    fill_matrix(c, n_out, n_in, seed, bytes.data() + 1);
    matrix = matrix_at(c, n_out, n_in, bytes.data() + 1);
  }
  std::vector<uint8_t> bytes;
  Matrix matrix;
};

std::vector<int64_t> widths(DType type) {
  const int64_t block = info(type).block_values;
  if (block == 1) return {1, 31, 32, 33, 64, 300};
  if (block == 32) return {32, 96, 256, 704};
  return {block, 3 * block, 1280 / block * block};
}

class EveryType : public testing::TestWithParam<TypeCase> {};
std::vector<TypeCase> all_types() {
  std::vector<TypeCase> types = block_types();
  for (const TypeCase& c : plain_types()) types.push_back(c);
  return types;
}
INSTANTIATE_TEST_SUITE_P(Kernels, EveryType, testing::ValuesIn(all_types()),
                         [](const auto& test_info) { return std::string(name(test_info.param.type)); });

TEST_P(EveryType, EveryTableGivesTheBitsOfScalarForAnyNumberOfTokens) {
  constexpr int64_t kTokens = 40;
  constexpr int64_t kRows = 53;
  const KernelTable& scalar = kernel_table("scalar");
  for (const int64_t k : widths(GetParam().type)) {
    const OwnedMatrix owned(GetParam(), kRows, k);
    const ActivationKind kind = activation_kind(owned.matrix);
    const auto x = random_tokens(kTokens, k, 2);
    const Records records(scalar, kind, x, k);
    const auto expected = products(scalar, owned.matrix, 0, kRows, records.first(kTokens));
    for (const KernelTable* table : available_tables()) {
      const Records own(*table, kind, x, k);
      for (int64_t n = 1; n <= kTokens; ++n) {
        expect_same(*table, owned.matrix, 0, kRows, own.first(n), expected);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EveryType, AnyRangeOfRowsOfAnyMatrixGivesTheSameBits) {
  const KernelTable& scalar = kernel_table("scalar");
  const int64_t k = widths(GetParam().type).back();
  constexpr int64_t kTokens = 17;
  const auto x = random_tokens(kTokens, k, 3);
  for (const int64_t n_rows : {1, 4, 15, 16, 17, 31, 32, 40, 100}) {
    const OwnedMatrix owned(GetParam(), n_rows, k, static_cast<uint32_t>(n_rows));
    const ActivationKind kind = activation_kind(owned.matrix);
    const Records records(scalar, kind, x, k);
    const auto expected = products(scalar, owned.matrix, 0, n_rows, records.first(kTokens));
    for (const KernelTable* table : available_tables()) {
      for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{16}, n_rows - 1}) {
        for (const int64_t end : {begin, begin + 1, begin + 15, begin + 33, n_rows}) {
          if (begin < 0 || end < begin || end > n_rows) continue;
          for (const int64_t n : {int64_t{1}, int64_t{3}, kTokens}) {
            expect_same(*table, owned.matrix, begin, end, records.first(n), expected);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(EveryType, MoreTokensThanAPanelGiveTheBitsOfOneToken) {
  constexpr int64_t kTokens = 519;
  constexpr int64_t kRows = 33;
  const int64_t k = widths(GetParam().type)[1];
  const OwnedMatrix owned(GetParam(), kRows, k);
  const ActivationKind kind = activation_kind(owned.matrix);
  const auto x = random_tokens(kTokens, k, 4);
  for (const KernelTable* table : available_tables()) {
    const Records records(*table, kind, x, k);
    const auto many = products(*table, owned.matrix, 0, kRows, records.first(kTokens));
    for (const int64_t m : {0, 1, 255, 511, 512, 518}) {
      const auto one = products(*table, owned.matrix, 0, kRows,
                                std::span(records.pointers).subspan(static_cast<size_t>(m), 1));
      for (size_t r = 0; r < kRows; ++r) {
        ASSERT_TRUE(same(many[static_cast<size_t>(m)][r], one[0][r])) << table->name << " token " << m;
      }
    }
  }
}

TEST_P(EveryType, EveryTablePreparesTheSameRecords) {
  for (const int64_t k : widths(GetParam().type)) {
    const OwnedMatrix owned(GetParam(), 1, k);
    const ActivationKind kind = activation_kind(owned.matrix);
    auto x = random_tokens(20, k, 5);
    x[0] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<size_t>(k)] = -std::numeric_limits<float>::infinity();
    x[static_cast<size_t>(2 * k)] = std::numeric_limits<float>::max();
    const Records expected(kernel_table("scalar"), kind, x, k);
    for (const KernelTable* table : available_tables()) {
      const Records got(*table, kind, x, k);
      for (size_t m = 0; m < got.pointers.size(); ++m) {
        EXPECT_EQ(std::memcmp(got.pointers[m], expected.pointers[m], static_cast<size_t>(got.stride)), 0)
            << table->name << " k=" << k << " token " << m;
      }
    }
  }
}

TEST_P(EveryType, ScalarIsAsCloseToFloat64AsItsActivationsAllow) {
  constexpr int64_t kTokens = 5;
  constexpr int64_t kRows = 20;
  const KernelTable& scalar = kernel_table("scalar");
  const int64_t k = widths(GetParam().type).back();
  const OwnedMatrix owned(GetParam(), kRows, k);
  const ActivationKind kind = activation_kind(owned.matrix);
  const auto x = random_tokens(kTokens, k, 6);
  const Records records(scalar, kind, x, k);
  const auto got = products(scalar, owned.matrix, 0, kRows, records.first(kTokens));
  std::vector<float> w(static_cast<size_t>(k));
  const int64_t span = kind == ActivationKind::kFloat || kind == ActivationKind::kBlocks32 ? 32 : 256;
  for (int64_t r = 0; r < kRows; ++r) {
    decode_row(owned.matrix, r, w.data());
    for (int64_t m = 0; m < kTokens; ++m) {
      double dot = 0.0;
      double tolerance = 0.0;
      for (int64_t begin = 0; begin < k; begin += span) {
        const float* xs = x.data() + m * k + begin;
        const int64_t n = std::min(span, k - begin);
        double amax = 0.0;
        double wmax = 0.0;
        for (int64_t i = 0; i < n; ++i) {
          amax = std::max(amax, std::fabs(static_cast<double>(xs[i])));
          wmax = std::max(wmax, std::fabs(static_cast<double>(w[static_cast<size_t>(begin + i)])));
        }
        // An activation is off by half a step; tiny blocks (below 127 / max float) become zero.
        const double step = kind == ActivationKind::kFloat ? 0.0 : std::max(amax / 127.0, 1e-36);
        for (int64_t i = 0; i < n; ++i) {
          const double weight = w[static_cast<size_t>(begin + i)];
          dot += weight * xs[i];
          tolerance += 0.501 * std::fabs(weight) * step;
        }
        // Rounding of decoded weights and of the chain, a few ulp of the largest terms.
        tolerance += 32.0 * 0x1p-23 * wmax * amax * static_cast<double>(n) + 1e-44;
      }
      EXPECT_NEAR(got[static_cast<size_t>(m)][static_cast<size_t>(r)], dot, tolerance) << "row " << r;
    }
  }
}

TEST_P(EveryType, ReadsNothingOutsideTheMatrix) {
  for (const int64_t k : widths(GetParam().type)) {
    for (const int64_t n_rows : {1, 8, 11, 16, 21, 32, 47}) {
      const int64_t bytes = n_rows * row_bytes(GetParam().type, k);
      const GuardedBytes guarded(bytes);
      for (uint8_t* data : {guarded.end() - bytes, guarded.begin()}) {
        fill_matrix(GetParam(), n_rows, k, 7, data);
        const Matrix matrix = matrix_at(GetParam(), n_rows, k, data);
        const auto x = random_tokens(20, k, 8);
        for (const KernelTable* table : available_tables()) {
          const Records records(*table, activation_kind(matrix), x, k);
          for (const int64_t n : {1, 4, 20}) {
            // Its reads are the test: one outside the pages ends the program.
            EXPECT_EQ(products(*table, matrix, 0, n_rows, records.first(n)).size(), static_cast<size_t>(n));
          }
        }
      }
    }
  }
}

TEST_P(EveryType, NonFiniteActivationsGiveNaNAndZerosGiveZero) {
  const int64_t k = widths(GetParam().type).back();
  const OwnedMatrix owned(GetParam(), 16, k);
  const ActivationKind kind = activation_kind(owned.matrix);
  if (kind == ActivationKind::kFloat) GTEST_SKIP() << "plain arithmetic";
  std::vector<float> x(static_cast<size_t>(3 * k), 0.0F);
  x[static_cast<size_t>(k + 1)] = std::numeric_limits<float>::infinity();
  x[static_cast<size_t>(3 * k - 1)] = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable* table : available_tables()) {
    const Records records(*table, kind, x, k);
    const auto got = products(*table, owned.matrix, 0, 16, records.first(3));
    for (const float v : got[0]) EXPECT_EQ(v, 0.0F) << table->name;
    for (size_t m = 1; m < 3; ++m) {
      for (const float v : got[m]) EXPECT_TRUE(std::isnan(v)) << table->name;
    }
  }
}

TEST(KernelTables, AreFoundByNameAndTheBestIsLast) {
  EXPECT_EQ(available_tables().front()->name, "scalar");
  EXPECT_EQ(&kernel_table(), available_tables().back());
  for (const KernelTable* table : available_tables()) EXPECT_EQ(&kernel_table(table->name), table);
  try {
    kernel_table("mmx");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kUsage);
    EXPECT_NE(std::string(error.what()).find("mmx"), std::string::npos);
  }
}

}  // namespace
}  // namespace synod::cpu
