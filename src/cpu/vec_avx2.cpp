// The vector helpers for AVX2, FMA and F16C. Everything after the pragma is compiled for these instructions,
// so headers stay above it.
#include "cpu/vec_table.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

namespace synod::cpu {
namespace {

// 16 floats: lanes 0..7 and 8..15.
struct V {
  __m256 a, b;
};
constexpr int kAccumulators = 4;

inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
inline V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline V operator+(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V operator-(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V operator*(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V operator/(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V vmax(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V vmin(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline __m256 zero_below8(__m256 x, __m256 limit, __m256 y) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y);
}
inline V zero_below(V x, V limit, V y) {
  return {zero_below8(x.a, limit.a, y.a), zero_below8(x.b, limit.b, y.b)};
}
inline __m256 power8(__m256 shifted) {
  const __m256i n = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
inline V power_of_two(V shifted) { return {power8(shifted.a), power8(shifted.b)}; }
inline float first_lane(V x) { return _mm256_cvtss_f32(x.a); }
inline float sum_lanes(V x) {
  const __m256 s8 = _mm256_add_ps(x.a, x.b);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float max_lanes(V x) {
  const __m256 s8 = _mm256_max_ps(x.a, x.b);
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline V sum_lanes_of_16(const V (&x)[16]) {
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = sum_lanes(x[i]);
  return load(sums);
}
inline __m256 bf16x8(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline V load_bf16(const uint16_t* p) { return {bf16x8(p), bf16x8(p + 8)}; }
inline __m256 f16x8(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline V load_f16(const uint16_t* p) { return {f16x8(p), f16x8(p + 8)}; }

// In order of use.
// clang-format off
#include "cpu/vec_kernels.inl"
#include "cpu/vec_attention.inl"
// clang-format on

}  // namespace

constinit const VecTable kVecAvx2 = make_table("avx2");

}  // namespace synod::cpu

#pragma GCC pop_options
#endif
