// Storages whose scales lie in other tensors (FP8, FP4, NVFP4, MLX): every instruction set gives the bits of
// the scalar float contract on the values of decode_row, for edge groups, slices and tails, and reads nothing
// outside codes and scales.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "cpu/kernels.h"
#include "cpu/kernels_test_util.h"

namespace synod::cpu {
namespace {

struct StoredCase {
  std::string title;
  Storage storage;
  DType scale_type;
  int64_t group;
  int bits = 0;
  float global_scale = 1.0F;
  bool global_divides = false;
  int64_t tile_out = 0;
  int64_t row_offset = 0;
  int64_t width_step = 8;  // widths are multiples of it
};

std::ostream& operator<<(std::ostream& out, const StoredCase& c) { return out << c.title; }

std::vector<StoredCase> stored_cases() {
  std::vector<StoredCase> cases = {
      {"fp8_block_f32", Storage::kFp8Block, DType::kF32, 128, 0, 1.0F, false, 128, 0, 1},
      {"fp8_block_bf16_sliced", Storage::kFp8Block, DType::kBF16, 128, 0, 1.0F, false, 128, 100, 1},
      {"fp8_block_e8m0", Storage::kFp8Block, DType::kF8E8M0, 128, 0, 1.0F, false, 128, 0, 1},
      {"fp8_block_small_tiles", Storage::kFp8Block, DType::kF32, 24, 0, 1.0F, false, 5, 3, 1},
      {"fp8_block_global", Storage::kFp8Block, DType::kF32, 128, 0, 3.0F, false, 128, 0, 1},
      {"mxfp8", Storage::kMxFp8, DType::kU8, 32, 0, 1.0F, false, 0, 0, 1},
      {"fp4", Storage::kFp4, DType::kU8, 32, 0, 1.0F, false, 0, 0, 2},
      {"fp4_odd_group", Storage::kFp4, DType::kU8, 8, 0, 1.0F, false, 0, 0, 2},
      {"nvfp4", Storage::kNvFp4, DType::kF8E4M3, 16, 0, 1.0F, false, 0, 0, 2},
      {"nvfp4_times", Storage::kNvFp4, DType::kF8E4M3, 16, 0, 0.37F, false, 0, 0, 2},
      {"nvfp4_divided", Storage::kNvFp4, DType::kF8E4M3, 16, 0, 4711.0F, true, 0, 0, 2},
  };
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const int64_t group : {32, 64, 128}) {
      cases.push_back({"mlx" + std::to_string(bits) + "_" + std::to_string(group), Storage::kMlxAffine,
                       group == 32   ? DType::kF16
                       : group == 64 ? DType::kBF16
                                     : DType::kF32,
                       group, bits});
    }
  }
  cases.push_back({"mlx4_global", Storage::kMlxAffine, DType::kBF16, 64, 4, 0.5F});
  return cases;
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Codes, scales and biases of a matrix, each between unreadable pages, at their ends or at their begins.
struct GuardedMatrix {
  GuardedMatrix(const StoredCase& c, int64_t n_out, int64_t n_in, uint32_t seed, bool at_end) {
    matrix.storage = c.storage;
    matrix.type = DType::kU8;
    matrix.scale_type = c.scale_type;
    matrix.n_out = n_out;
    matrix.n_in = n_in;
    matrix.group = c.group;
    matrix.bits = c.bits;
    matrix.tile_out = c.tile_out;
    matrix.row_offset = c.row_offset;
    matrix.global_scale = c.global_scale;
    matrix.global_divides = c.global_divides;
    matrix.name = c.title;
    matrix.row_stride = matrix.code_bytes();
    std::mt19937 rng(seed);
    const auto place = [&](int64_t bytes, std::unique_ptr<GuardedBytes>& pages) {
      pages = std::make_unique<GuardedBytes>(bytes);
      uint8_t* begin = at_end ? pages->end() - bytes : pages->begin();
      for (int64_t i = 0; i < bytes; ++i) begin[i] = static_cast<uint8_t>(rng());
      return begin;
    };
    matrix.data = reinterpret_cast<const std::byte*>(place(n_out * matrix.row_stride, codes));
    const int64_t scale_bytes = c.scale_type == DType::kU8 ? 1 : info(c.scale_type).block_bytes;
    matrix.scale_stride = divide_up(n_in, c.group) * scale_bytes;
    const int64_t rows = c.tile_out == 0 ? n_out : divide_up(c.row_offset + n_out, c.tile_out);
    uint8_t* first = place(rows * matrix.scale_stride, scales);
    fill_scales(c, rng, first, rows * matrix.scale_stride / scale_bytes);
    matrix.scales = reinterpret_cast<const std::byte*>(first);
    if (c.storage == Storage::kMlxAffine) {
      uint8_t* bias = place(rows * matrix.scale_stride, biases);
      fill_scales(c, rng, bias, rows * matrix.scale_stride / scale_bytes);
      matrix.biases = reinterpret_cast<const std::byte*>(bias);
    }
  }

  // Ordinary, zero, subnormal and huge scales; for code types every code.
  static void fill_scales(const StoredCase& c, std::mt19937& rng, uint8_t* out, int64_t n) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t kind = rng() % 16;
      const float value = kind == 0 ? 0.0F : kind == 1 ? 1e-41F : kind == 2 ? 3e38F : 0.1F * normal(rng);
      if (c.scale_type == DType::kF32) {
        std::memcpy(out + 4 * i, &value, 4);
      } else if (c.scale_type == DType::kBF16 || c.scale_type == DType::kF16) {
        const uint16_t bits = c.scale_type == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
        std::memcpy(out + 2 * i, &bits, 2);
      } else {
        out[i] = static_cast<uint8_t>(kind < 3 ? rng() : 100 + rng() % 40);
      }
    }
  }

  Matrix matrix;
  std::unique_ptr<GuardedBytes> codes, scales, biases;
};

class EveryStorage : public testing::TestWithParam<StoredCase> {};
INSTANTIATE_TEST_SUITE_P(Kernels, EveryStorage, testing::ValuesIn(stored_cases()),
                         [](const auto& test_info) { return test_info.param.title; });

TEST_P(EveryStorage, EveryTableGivesTheBitsOfScalarAndStaysInside) {
  const StoredCase& c = GetParam();
  constexpr int64_t kTokens = 7;
  const KernelTable& scalar = kernel_table("scalar");
  for (const int64_t base : {8, 16, 24, 32, 48, 120, 136, 256, 320, 1000}) {
    const int64_t k = c.width_step == 1 ? base + 1 : base;
    for (const int64_t n_rows : {1, 2, 5, 33}) {
      for (const bool at_end : {true, false}) {
        const GuardedMatrix guarded(c, n_rows, k, static_cast<uint32_t>(k + n_rows), at_end);
        const Matrix& m = guarded.matrix;
        ASSERT_EQ(activation_kind(m), ActivationKind::kFloat);
        const auto x = random_tokens(kTokens, k, 3);
        const Records records(scalar, ActivationKind::kFloat, x, k);
        const auto expected = products(scalar, m, 0, n_rows, records.first(kTokens));
        for (const KernelTable* table : available_tables()) {
          for (const int64_t n : {int64_t{1}, int64_t{2}, int64_t{3}, kTokens}) {
            expect_same(*table, m, 0, n_rows, records.first(n), expected);
            expect_same(*table, m, n_rows / 2, n_rows, records.first(n), expected);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(EveryStorage, ASliceOfRowsIsAMatrix) {
  const StoredCase& c = GetParam();
  constexpr int64_t kRows = 150;
  const int64_t k = c.width_step == 1 ? 129 : 128;
  const GuardedMatrix guarded(c, kRows, k, 5, true);
  const auto x = random_tokens(1, k, 4);
  const Records records(kernel_table("scalar"), ActivationKind::kFloat, x, k);
  const auto all = products(kernel_table("scalar"), guarded.matrix, 0, kRows, records.first(1));
  const Matrix slice = guarded.matrix.rows(27, 141);
  const std::vector<std::vector<float>> expected = {{all[0].begin() + 27, all[0].begin() + 141}};
  for (const KernelTable* table : available_tables()) {
    expect_same(*table, slice, 0, slice.n_out, records.first(1), expected);
  }
}

}  // namespace
}  // namespace synod::cpu
