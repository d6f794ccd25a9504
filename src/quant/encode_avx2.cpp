// The AVX2 searches: 8 groups at a time. Everything after the pragma is compiled for these instructions, so
// headers stay above it.
#include <utility>

#include "quant/blocks.h"
#include "quant/encode_isa.h"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2")

namespace synod::quant {
namespace {

constexpr int kLanes = 8;
using F = float __attribute__((vector_size(4 * kLanes)));
using I = int32_t __attribute__((vector_size(4 * kLanes)));

#define SYNOD_INLINE inline __attribute__((always_inline))
// Written out because the compiler makes compares and blends of the generic form.
SYNOD_INLINE I min_int(I a, I b) {
  return reinterpret_cast<I>(_mm256_min_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
SYNOD_INLINE I max_int(I a, I b) {
  return reinterpret_cast<I>(_mm256_max_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
// The low bytes of all lanes.
SYNOD_INLINE void store_bytes(I v, uint8_t* out) {
  const __m256i low = _mm256_setr_epi32(0x0c080400, 0, 0, 0, 0x0c080400, 0, 0, 0);
  const __m256i bytes = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(v), low);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}

#include "quant/encode_lanes.inl"

}  // namespace

#pragma GCC pop_options

constexpr SearchTable kAvx2Search = {.name = "avx2",
                                     .affine = affine,
                                     .symmetric = symmetric,
                                     .refined = refined,
                                     .iq4_scales = iq4_scales,
                                     .project = project,
                                     .nearest = nearest};

}  // namespace synod::quant

#endif
