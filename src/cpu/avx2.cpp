// The AVX2 table (AVX2, FMA, F16C). Everything after the pragma is compiled for these instructions, so
// headers stay above it.
#include "cpu/isa/job.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "quant/blocks.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace synod::cpu {
namespace {

// In order of use.
// clang-format off
#include "cpu/isa/avx2/common.inl"
#include "cpu/isa/avx2/float.inl"
#include "cpu/isa/avx2/decode.inl"
#include "cpu/isa/avx2/prepare.inl"
// clang-format on

JobKernel find(const Matrix& matrix) {
  if (matrix.global_scale != 1.0F) return nullptr;
  if (matrix.storage != Storage::kPlain && matrix.storage != Storage::kBlock) return nullptr;
  switch (matrix.type) {
    case DType::kF32:
      return run_float<LoadF32>;
    case DType::kF16:
      return run_float<LoadF16>;
    case DType::kBF16:
      return run_float<LoadBF16>;
    default:
      break;
  }
  return matrix.n_out < 8 ? nullptr : find_avx2_blocks(matrix.type);
}

constexpr Isa kIsa = {.find = find, .f32_rows = run_float<LoadF32>, .decoders = &kDecoders};

void rows(const Matrix& matrix, int64_t row_begin, int64_t row_end, std::span<const std::byte* const> records,
          std::span<float* const> out, std::byte* scratch, const std::byte* next) {
  rows_with(kIsa, matrix, row_begin, row_end, records, out, scratch, next);
}

}  // namespace

constexpr KernelTable kAvx2Table = {.name = "avx2", .prepare = prepare, .run_rows = rows};

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
