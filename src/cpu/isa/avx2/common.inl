// Shared by all AVX2 kernels: the scheme of avx512/common.inl with 8 rows in 8 lanes. vpmaddubsw stands in
// for the missing four-wise dot product; every use says why its 16-bit sums cannot saturate.

#define SYNOD_INLINE static inline __attribute__((always_inline))

struct Rows8 {
  const uint8_t* p;
  int64_t stride;
};

// r[w], lane i: bytes 4w..4w+3 at p + i * stride. Reads 16 bytes of each row.
SYNOD_INLINE void tr8(const uint8_t* p, int64_t stride, __m256i* r) {
  const auto rows = [&](int j) __attribute__((always_inline)) {  // rows j and j + 4
    const uint8_t* q = p + j * stride;
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 4 * stride));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  };
  const __m256i a = rows(0);
  const __m256i b = rows(1);
  const __m256i c = rows(2);
  const __m256i d = rows(3);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b);
  const __m256i ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d);
  const __m256i cd_high = _mm256_unpackhi_epi32(c, d);
  r[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
  r[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
  r[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  r[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

SYNOD_INLINE int32_t load_i32(const uint8_t* p) {
  int32_t v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

// The dword at byte `offset` of the block of each row. Loads and inserts: vpgatherdd is slower on the CPUs
// that have no more than AVX2, many times so under the mitigation of gather data sampling.
SYNOD_INLINE __m256i gather(const Rows8& rows, int offset) {
  const auto four = [&](int first) __attribute__((always_inline)) {
    const uint8_t* p = rows.p + first * rows.stride + offset;
    const __m128i v = _mm_cvtsi32_si128(load_i32(p));
    const __m128i w = _mm_cvtsi32_si128(load_i32(p + 2 * rows.stride));
    return _mm_unpacklo_epi64(_mm_insert_epi32(v, load_i32(p + rows.stride), 1),
                              _mm_insert_epi32(w, load_i32(p + 3 * rows.stride), 1));
  };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(4), 1);
}

// f16 in the low, in the high half of each dword.
SYNOD_INLINE __m256 f16_high(__m256i v) {
  const __m256i bits = _mm256_srli_epi32(v, 16);
  const __m128i low = _mm256_castsi256_si128(bits);
  return _mm256_cvtph_ps(_mm_packus_epi32(low, _mm256_extracti128_si256(bits, 1)));
}
SYNOD_INLINE __m256 f16_low(__m256i v) { return f16_high(_mm256_slli_epi32(v, 16)); }

SYNOD_INLINE __m256i bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
SYNOD_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, bytes_of(15)); }
SYNOD_INLINE __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi32(v, 4)); }

SYNOD_INLINE __m256i broadcast(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, sizeof(v));
  return _mm256_set1_epi32(v);
}

SYNOD_INLINE __m256i table16(const int8_t (&values)[16], int offset) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  return _mm256_broadcastsi128_si256(_mm_add_epi8(v, _mm_set1_epi8(static_cast<char>(offset))));
}
// w[i] = table[w[i]]
SYNOD_INLINE void look_up(__m256i table, __m256i (&w)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) w[i] = _mm256_shuffle_epi8(table, w[i]);
}

// Rows of a tile; the sums of a token so far are parked in as many floats.
inline constexpr int64_t kParkRows = 16;

SYNOD_INLINE __m256 add_scaled(__m256 acc, __m256 d, float dx, __m256i sum) {
  return _mm256_fmadd_ps(_mm256_mul_ps(d, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(sum), acc);
}

// 32 values to their positions in kBlocks256By4 and By8.
SYNOD_INLINE __m256i by4(__m256i v) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
}
SYNOD_INLINE __m256i by8(__m256i v) {
  const __m128i order = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  const __m256i pairs = _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
  const __m128i low = _mm256_castsi256_si128(pairs);
  const __m128i high = _mm256_extracti128_si256(pairs, 1);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(low, high)),
                                 _mm_unpackhi_epi16(low, high), 1);
}
