// The AVX-512 kernels of the codebook types: a translation unit of their own because unrolled kernels compile
// slowly. Everything after the pragma is compiled for these instructions, so headers stay above it.
#include "cpu/isa/job.h"

#if defined(__x86_64__)
// GCC 12's intrinsics start from registers that they deliberately leave undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "cpu/scalar_blocks.h"
#include "quant/blocks.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni")

namespace synod::cpu {
namespace {

// In order of use.
// clang-format off
#include "cpu/isa/avx512/common.inl"
#include "cpu/isa/avx512/scaling.inl"
#include "cpu/isa/avx512/codebooks.inl"
#include "cpu/isa/avx512/blocks256.inl"
#include "cpu/isa/avx512/drivers.inl"
// clang-format on

}  // namespace

JobKernel find_avx512_codebooks(DType type) {
  switch (type) {
    case DType::kIQ2_XXS:
      return run<Blocks256<IQ2_XXS>>;
    case DType::kIQ2_XS:
      return run<Blocks256<IQ2_XS>>;
    case DType::kIQ2_S:
      return run<Blocks256<IQ2_S>>;
    case DType::kIQ3_XXS:
      return run<Blocks256<IQ3_XXS>>;
    case DType::kIQ3_S:
      return run<Blocks256<IQ3_S>>;
    case DType::kIQ1_S:
      return run<Blocks256<IQ1_S>>;
    case DType::kIQ1_M:
      return run<Blocks256<IQ1_M>>;
    default:
      return nullptr;
  }
}

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
