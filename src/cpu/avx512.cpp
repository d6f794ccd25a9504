// The AVX-512 table (F, BW, VL, DQ, VNNI, VBMI, GFNI). Everything after the pragma is compiled for these
// instructions, so headers stay above it.
#include "cpu/isa/job.h"

#if defined(__x86_64__)
// GCC 12's intrinsics start from registers that they deliberately leave undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "quant/blocks.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni")

namespace synod::cpu {
namespace {

// In order of use.
// clang-format off
#include "cpu/isa/avx512/common.inl"
#include "cpu/isa/avx512/types32.inl"
#include "cpu/isa/avx512/drivers.inl"
#include "cpu/isa/avx512/float.inl"
#include "cpu/isa/avx512/decode.inl"
#include "cpu/isa/avx512/prepare.inl"
// clang-format on

JobKernel find_plain(DType type) {
  switch (type) {
    case DType::kF32:
      return run_float<LoadF32>;
    case DType::kF16:
      return run_float<LoadF16>;
    case DType::kBF16:
      return run_float<LoadBF16>;
    default:
      return nullptr;
  }
}

JobKernel find_block(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return run<Blocks32<Q4_0>>;
    case DType::kQ4_1:
      return run<Blocks32<Q4_1>>;
    case DType::kQ5_0:
      return run<Blocks32<Q5_0>>;
    case DType::kQ5_1:
      return run<Blocks32<Q5_1>>;
    case DType::kQ8_0:
      return run<Blocks32<Q8_0>>;
    case DType::kIQ4_NL:
      return run<Blocks32<IQ4_NL>>;
    case DType::kMXFP4:
      return run<Blocks32<MXFP4>>;
    default:
      return find_avx512_super_blocks(type);
  }
}

JobKernel find(const Matrix& matrix) {
  if (matrix.global_scale != 1.0F) return nullptr;
  if (matrix.storage == Storage::kPlain) return find_plain(matrix.type);
  if (matrix.storage != Storage::kBlock || matrix.n_out < 16) return nullptr;
  return find_block(matrix.type);
}

constexpr Isa kIsa = {.find = find, .f32_rows = run_float<LoadF32>, .decoders = &kDecoders};

void rows(const Matrix& matrix, int64_t row_begin, int64_t row_end, std::span<const std::byte* const> records,
          std::span<float* const> out, std::byte* scratch, const std::byte* next) {
  rows_with(kIsa, matrix, row_begin, row_end, records, out, scratch, next);
}

}  // namespace

constexpr KernelTable kAvx512Table = {.name = "avx512", .prepare = prepare, .run_rows = rows};

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
