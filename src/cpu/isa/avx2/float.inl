// Plain floats: four registers hold the 32 lanes of one row; two rows at a time.

// Bytes that prefetching runs ahead in each row.
inline constexpr int64_t kFloatPrefetch = 2048;

struct LoadF32 {
  static constexpr int kBytes = 4;
  SYNOD_INLINE __m256 load(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};

struct LoadBF16 {
  static constexpr int kBytes = 2;
  SYNOD_INLINE __m256 load(const uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
};

struct LoadF16 {
  static constexpr int kBytes = 2;
  SYNOD_INLINE __m256 load(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};

SYNOD_INLINE float pairwise_sum(const __m256 (&lanes)[4]) {
  const __m256 v8 = _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3]));
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

// Adds the last n < 32 products to the first n lanes.
template <typename Load>
void add_rest(const uint8_t* w, const float* x, int64_t n, __m256 (&lanes)[4]) {
  alignas(32) uint8_t codes[32 * Load::kBytes] = {};
  alignas(32) float weights[32];
  alignas(32) float sums[32];
  __builtin_memcpy(codes, w, static_cast<size_t>(n * Load::kBytes));
  for (int i = 0; i < 4; ++i) {
    _mm256_store_ps(weights + 8 * i, Load::load(codes + 8 * i * Load::kBytes));
    _mm256_store_ps(sums + 8 * i, lanes[i]);
  }
  for (int64_t j = 0; j < n; ++j) sums[j] = __builtin_fmaf(weights[j], x[j], sums[j]);
  for (int i = 0; i < 4; ++i) lanes[i] = _mm256_load_ps(sums + 8 * i);
}

// R rows of M tokens; rows or tokens share their loads.
template <typename Load, int R, int M>
void float_group(const Job& job, int64_t row, int64_t token) {
  const uint8_t* w = job.data + row * job.stride;
  const float* x[M];
  for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const float*>(job.x[token + m]);
  __m256 acc[R][M][4];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      acc[r][m][0] = acc[r][m][1] = acc[r][m][2] = acc[r][m][3] = _mm256_setzero_ps();
    }
  }
  int64_t k = 0;
  for (; k + 32 <= job.k; k += 32) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const uint8_t* p = w + r * job.stride + k * Load::kBytes;
      if constexpr (M < 3) _mm_prefetch(p + kFloatPrefetch, _MM_HINT_T1);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256 ws = Load::load(p + 8 * i * Load::kBytes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          acc[r][m][i] = _mm256_fmadd_ps(ws, _mm256_loadu_ps(x[m] + k + 8 * i), acc[r][m][i]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int m = 0; m < M; ++m) {
      if (k < job.k) {
        add_rest<Load>(w + r * job.stride + k * Load::kBytes, x[m] + k, job.k - k, acc[r][m]);
      }
      job.out[token + m][row - job.begin + r] = pairwise_sum(acc[r][m]);
    }
  }
}

template <typename Load, int R>
void float_rows(const Job& job, int64_t row) {
  int64_t m = 0;
  if constexpr (R == 1) {
    for (; m + 3 <= job.n_tokens; m += 3) float_group<Load, 1, 3>(job, row, m);
  }
  for (; m < job.n_tokens; ++m) float_group<Load, R, 1>(job, row, m);
}

template <typename Load>
void run_float(const Job& job) {
  // Many tokens pass over rows that stay in L1, a few over pairs of rows.
  int64_t row = job.begin;
  if (job.n_tokens < 3) {
    for (; row + 2 <= job.end; row += 2) float_rows<Load, 2>(job, row);
  }
  for (; row < job.end; ++row) float_rows<Load, 1>(job, row);
}
