// The AVX-512 searches: 16 groups at a time. Everything after the pragma is compiled for these instructions,
// so headers stay above it.
#include <utility>

#include "quant/blocks.h"
#include "quant/encode_isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512")

namespace synod::quant {
namespace {

constexpr int kLanes = 16;
using F = float __attribute__((vector_size(4 * kLanes)));
using I = int32_t __attribute__((vector_size(4 * kLanes)));

#define SYNOD_INLINE inline __attribute__((always_inline))
// Written out because the compiler makes compares and blends of the generic form. (The forms without a mask
// draw a false warning from GCC 12.)
SYNOD_INLINE I min_int(I a, I b) {
  return reinterpret_cast<I>(
      _mm512_maskz_min_epi32(0xffff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
SYNOD_INLINE I max_int(I a, I b) {
  return reinterpret_cast<I>(
      _mm512_maskz_max_epi32(0xffff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
// The low bytes of all lanes.
SYNOD_INLINE void store_bytes(I v, uint8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(v)));
}

#include "quant/encode_lanes.inl"

}  // namespace

#pragma GCC pop_options

constexpr SearchTable kAvx512Search = {.name = "avx512",
                                       .affine = affine,
                                       .symmetric = symmetric,
                                       .refined = refined,
                                       .iq4_scales = iq4_scales,
                                       .project = project,
                                       .nearest = nearest};

}  // namespace synod::quant

#endif
