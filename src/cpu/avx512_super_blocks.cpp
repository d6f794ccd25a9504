// The AVX-512 kernels of the super-block types: a translation unit of their own because unrolled kernels
// compile slowly. Everything after the pragma is compiled for these instructions, so headers stay above it.
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
#include "cpu/isa/avx512/scaling.inl"
#include "cpu/isa/avx512/types256.inl"
#include "cpu/isa/avx512/blocks256.inl"
#include "cpu/isa/avx512/drivers.inl"
// clang-format on

}  // namespace

JobKernel find_avx512_super_blocks(DType type) {
  switch (type) {
    case DType::kQ2_K:
      return run<Blocks256<Q2_K>>;
    case DType::kQ3_K:
      return run<Blocks256<Q3_K>>;
    case DType::kIQ4_XS:
      return run<Blocks256<IQ4_XS>>;
    case DType::kQ4_K:
      return run<Blocks256<Q4_K>>;
    case DType::kQ5_K:
      return run<Blocks256<Q5_K>>;
    case DType::kQ6_K:
      return run<Blocks256<Q6_K>>;
    case DType::kTQ1_0:
      return run<Blocks256<TQ1_0>>;
    case DType::kTQ2_0:
      return run<Blocks256<TQ2_0>>;
    default:
      return find_avx512_codebooks(type);
  }
}

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
