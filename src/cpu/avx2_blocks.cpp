// The AVX2 kernels of block types: a translation unit of their own because unrolled kernels compile slowly.
// Everything after the pragma is compiled for these instructions, so headers stay above it.
#include "cpu/isa/job.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/scalar_blocks.h"
#include "quant/blocks.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace synod::cpu {
namespace {

// In order of use.
// clang-format off
#include "cpu/isa/avx2/common.inl"
#include "cpu/isa/avx2/sums.inl"
#include "cpu/isa/avx2/types32.inl"
#include "cpu/isa/avx2/types256.inl"
#include "cpu/isa/avx2/codebooks.inl"
#include "cpu/isa/avx2/drivers.inl"
// clang-format on

}  // namespace

JobKernel find_avx2_blocks(DType type) {
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
    case DType::kQ2_K:
      return run<Blocks256<Q2_K>>;
    case DType::kQ3_K:
      return run<Blocks256<Q3_K>>;
    case DType::kQ4_K:
      return run<Blocks256<Q4_K>>;
    case DType::kQ5_K:
      return run<Blocks256<Q5_K>>;
    case DType::kQ6_K:
      return run<Blocks256<Q6_K>>;
    case DType::kIQ4_XS:
      return run<Blocks256<IQ4_XS>>;
    case DType::kIQ2_XXS:
      return run<Blocks256<ByRow<IQ2_XXS>>>;
    case DType::kIQ2_XS:
      return run<Blocks256<ByRow<IQ2_XS>>>;
    case DType::kIQ2_S:
      return run<Blocks256<ByRow<IQ2_S>>>;
    case DType::kIQ3_XXS:
      return run<Blocks256<ByRow<IQ3_XXS>>>;
    case DType::kIQ3_S:
      return run<Blocks256<ByRow<IQ3_S>>>;
    case DType::kIQ1_S:
      return run<Blocks256<ByRow<IQ1_S>>>;
    case DType::kIQ1_M:
      return run<Blocks256<ByRow<IQ1_M>>>;
    case DType::kTQ1_0:
      return run<Blocks256<ByRow<TQ1_0>>>;
    case DType::kTQ2_0:
      return run<Blocks256<ByRow<TQ2_0>>>;
    default:
      return nullptr;
  }
}

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
