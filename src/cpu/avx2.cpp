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
#include "cpu/isa/avx2/blocks.inl"
#include "cpu/isa/avx2/float.inl"
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
  if (matrix.n_out < 8) return nullptr;
  switch (matrix.type) {
    case DType::kQ8_0:
      return run<Q8_0>;
    case DType::kQ5_0:
      return run<Q5_0>;
    case DType::kQ4_K:
      return run<Q4_K>;
    case DType::kQ6_K:
      return run<Q6_K>;
    default:
      return nullptr;
  }
}

constexpr Isa kIsa = {.find = find, .f32_rows = run_float<LoadF32>};

void rows(const Matrix& matrix, int64_t row_begin, int64_t row_end, std::span<const std::byte* const> records,
          std::span<float* const> out, std::byte* scratch) {
  rows_with(kIsa, matrix, row_begin, row_end, records, out, scratch);
}

}  // namespace

constexpr KernelTable kAvx2Table = {.name = "avx2", .prepare = prepare, .rows = rows};

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
