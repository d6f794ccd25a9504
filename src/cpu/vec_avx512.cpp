// The vector helpers for AVX-512. Everything after the pragma is compiled for these instructions, so headers
// stay above it.
#include "cpu/vec_table.h"

#if defined(__x86_64__)
// GCC 12's intrinsics start from registers that they deliberately leave undefined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")

namespace synod::cpu {
namespace {

// 16 floats.
struct V {
  __m512 v;
};
constexpr int kAccumulators = 16;

inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x.v); }
inline V set1(float x) { return {_mm512_set1_ps(x)}; }
inline V fma(V x, V y, V z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline V operator+(V x, V y) { return {_mm512_add_ps(x.v, y.v)}; }
inline V operator-(V x, V y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline V operator*(V x, V y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline V operator/(V x, V y) { return {_mm512_div_ps(x.v, y.v)}; }
inline V vmax(V x, V y) { return {_mm512_max_ps(x.v, y.v)}; }
inline V vmin(V x, V y) { return {_mm512_min_ps(x.v, y.v)}; }
inline V zero_below(V x, V limit, V y) {
  const __mmask16 below = _mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ);
  return {_mm512_mask_blend_ps(below, y.v, _mm512_setzero_ps())};
}
inline V power_of_two(V shifted) {
  const __m512i n = _mm512_add_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(n, 23))};
}
inline float first_lane(V x) { return _mm512_cvtss_f32(x.v); }
inline float sum_lanes(V x) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float max_lanes(V x) {
  const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
// One step of the tree for two vectors at once: halves (j + 8), quarters (j + 4), then inside 128 bits.
inline __m512 add_halves(__m512 x, __m512 y) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x44), _mm512_shuffle_f32x4(x, y, 0xEE));
}
inline __m512 add_quarters(__m512 x, __m512 y) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
}
inline __m512 add_pairs(__m512 x, __m512 y) {
  return _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xEE));
}
inline __m512 add_neighbours(__m512 x, __m512 y) {
  return _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xDD));
}
// The sums of vectors i, i + 4, i + 8, i + 12 after two steps: 4 lanes of each.
inline __m512 quarter_sums(const V (&x)[16], int i) {
  return add_quarters(add_halves(x[i].v, x[i + 4].v), add_halves(x[i + 8].v, x[i + 12].v));
}
inline V sum_lanes_of_16(const V (&x)[16]) {
  const __m512 a = add_pairs(quarter_sums(x, 0), quarter_sums(x, 1));
  const __m512 b = add_pairs(quarter_sums(x, 2), quarter_sums(x, 3));
  return {add_neighbours(a, b)};
}
inline V load_bf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline V load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// In order of use.
// clang-format off
#include "cpu/vec_kernels.inl"
#include "cpu/vec_attention.inl"
// clang-format on

}  // namespace

constinit const VecTable kVecAvx512 = make_table("avx512");

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
