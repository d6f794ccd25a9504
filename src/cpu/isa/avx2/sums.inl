// Integer sums of codes with activations. vpmaddubsw adds pairs of u8 x s8 products in int16: codes up to
// kMax allow runs of kRun<kMax, N> quads before a sum could pass 32767. Signed codes up to 128 give their
// sign to the activations, |w| * q.

template <int kMax, int N>
inline constexpr int kRun = 32767 / (2 * 127 * kMax) < N ? 32767 / (2 * 127 * kMax) : N;

// acc += codes w[i] (of values 4i..4i+3) * the activations at q * factor; factor: int16, twice in a dword.
template <int kMax, bool kSigned, int N>
SYNOD_INLINE __m256i add_products(__m256i acc, const __m256i* w, const int8_t* q, __m256i factor) {
  static_assert(kRun<kMax, N> >= 1);
#pragma GCC unroll 8
  for (int i = 0; i < N; i += kRun<kMax, N>) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int l = 0; l < kRun<kMax, N>; ++l) {
      const int j = i + l;
      if (j >= N) continue;
      __m256i x = broadcast(q + 4 * j);
      if constexpr (kSigned) x = _mm256_sign_epi8(x, w[j]);
      const __m256i product = _mm256_maddubs_epi16(kSigned ? _mm256_abs_epi8(w[j]) : w[j], x);
      sum = l == 0 ? product : _mm256_add_epi16(sum, product);
    }
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(sum, factor));
  }
  return acc;
}

// The same for two halves of M tokens.
template <int kMax, bool kSigned, int N, int M>
SYNOD_INLINE void add_tile_products(__m256i (&acc)[M][2], const __m256i (*w)[2], const int8_t* const (&q)[M],
                                    const __m256i (&factor)[2]) {
#pragma GCC unroll 8
  for (int i = 0; i < N; i += kRun<kMax, N>) {
    __m256i sum[M][2];
#pragma GCC unroll 8
    for (int l = 0; l < kRun<kMax, N>; ++l) {
      const int j = i + l;
      if (j >= N) continue;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i codes = w[j][h];
        const __m256i magnitude = kSigned ? _mm256_abs_epi8(codes) : codes;
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          __m256i x = broadcast(q[m] + 4 * j);
          if constexpr (kSigned) x = _mm256_sign_epi8(x, codes);
          const __m256i product = _mm256_maddubs_epi16(magnitude, x);
          sum[m][h] = l == 0 ? product : _mm256_add_epi16(sum[m][h], product);
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        acc[m][h] = _mm256_add_epi32(acc[m][h], _mm256_madd_epi16(sum[m][h], factor[h]));
      }
    }
  }
}

// sum of pairs (two int16 a lane) * the pairs of activation sums at x.
template <int N>
SYNOD_INLINE __m256i pair_sums(const __m256i* pairs, const int32_t* x) {
  __m256i sum = _mm256_madd_epi16(pairs[0], broadcast(x));
#pragma GCC unroll 8
  for (int i = 1; i < N; ++i) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs[i], broadcast(x + i)));
  return sum;
}

// 16 rows x 256 values, unpacked.
struct Tile {
  __m256i w[64][2];  // codes of k = 4i..4i+3
  __m256i s[16][2];  // integer sub-scales, int16 twice
  __m256i b[8][2];   // pairs of sub-scales, for what was added to the codes
  __m256i t[8][2];   // pairs of integer mins
  __m256 d[8][2];
  __m256 m[8][2];
};
static_assert(sizeof(Tile) <= kTileBytes);
