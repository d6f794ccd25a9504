// Plain floats: four registers hold the 32 lanes of one row; two rows at a time.

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

template <typename Load, int R>
void float_group(const Job& job, int64_t row, int64_t token) {
  const auto* x = reinterpret_cast<const float*>(job.x[token]);
  const uint8_t* w = job.data + row * job.stride;
  __m256 acc[R][4];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = _mm256_setzero_ps();
  int64_t k = 0;
  for (; k + 32 <= job.k; k += 32) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256 xs = _mm256_loadu_ps(x + k + 8 * i);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 ws = Load::load(w + r * job.stride + (k + 8 * i) * Load::kBytes);
        acc[r][i] = _mm256_fmadd_ps(ws, xs, acc[r][i]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    if (k < job.k) add_rest<Load>(w + r * job.stride + k * Load::kBytes, x + k, job.k - k, acc[r]);
    job.out[token][row - job.begin + r] = pairwise_sum(acc[r]);
  }
}

template <typename Load>
void run_float(const Job& job) {
  int64_t row = job.begin;
  for (; row + 2 <= job.end; row += 2) {
    for (int64_t m = 0; m < job.n_tokens; ++m) float_group<Load, 2>(job, row, m);
  }
  for (; row < job.end; ++row) {
    for (int64_t m = 0; m < job.n_tokens; ++m) float_group<Load, 1>(job, row, m);
  }
}
