// Plain floats: lane j of two registers sums k = j mod 32 by fma, then a fixed pairwise tree. Four rows and
// up to three tokens share their loads.

struct LoadF32 {
  static constexpr int kBytes = 4;
  SYNOD_INLINE __m512 load(const uint8_t* p) { return _mm512_loadu_ps(p); }
  SYNOD_INLINE __m512 load(const uint8_t* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
};

struct LoadBF16 {
  static constexpr int kBytes = 2;
  SYNOD_INLINE __m512 widen(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
  SYNOD_INLINE __m512 load(const uint8_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  SYNOD_INLINE __m512 load(const uint8_t* p, __mmask16 mask) {
    return widen(_mm256_maskz_loadu_epi16(mask, p));
  }
};

struct LoadF16 {
  static constexpr int kBytes = 2;
  SYNOD_INLINE __m512 load(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  SYNOD_INLINE __m512 load(const uint8_t* p, __mmask16 mask) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
  }
};

SYNOD_INLINE float pairwise_sum(__m512 low, __m512 high) {
  const __m512 v16 = _mm512_add_ps(low, high);
  const __m256 v8 = _mm256_add_ps(_mm512_castps512_ps256(v16), _mm512_extractf32x8_ps(v16, 1));
  const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
  const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
  return _mm_cvtss_f32(_mm_add_ss(v2, _mm_movehdup_ps(v2)));
}

struct LinearPrefetch {
  const uint8_t* p;
  const uint8_t* end;
  const uint8_t* then = nullptr;  // where to go on after `end`
  template <int kBytes>
  __attribute__((always_inline)) void next() {
    if (p >= end) {
      if (then == nullptr) return;
      p = then;
      end = then + kPrefetchBytes;
      then = nullptr;
    }
#pragma GCC unroll 16
    for (int i = 0; i < (kBytes + 63) / 64; ++i) _mm_prefetch(p + 64 * i, _MM_HINT_T1);
    p += kBytes;
  }
};

// out[m][r] = row r * token m for R rows from w on.
template <typename Load, int R, int M>
SYNOD_INLINE void float_dots(const uint8_t* w, int64_t stride, int64_t k, const float* const (&x)[M],
                             float (&out)[M][R], LinearPrefetch& pf) {
  __m512 acc[R][M][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[r][m][0] = acc[r][m][1] = _mm512_setzero_ps();
  }
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    pf.next<32 * Load::kBytes * R>();
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m512 xs[M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) xs[m] = _mm512_loadu_ps(x[m] + i + 16 * h);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512 ws = Load::load(w + r * stride + (i + 16 * h) * Load::kBytes);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) acc[r][m][h] = _mm512_fmadd_ps(ws, xs[m], acc[r][m][h]);
      }
    }
  }
  if (i < k) {  // lanes past the end keep their sums untouched
    const uint32_t rest = (uint32_t{1} << (k - i)) - 1;
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const auto mask = static_cast<__mmask16>(rest >> (16 * h));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const __m512 ws = Load::load(w + r * stride + (i + 16 * h) * Load::kBytes, mask);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const __m512 xs = _mm512_maskz_loadu_ps(mask, x[m] + i + 16 * h);
          acc[r][m][h] = _mm512_mask3_fmadd_ps(ws, xs, acc[r][m][h], mask);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) out[m][r] = pairwise_sum(acc[r][m][0], acc[r][m][1]);
  }
}

template <typename Load, int R, int M>
void float_group(const Job& job, int64_t row, int64_t first_token, LinearPrefetch& pf) {
  const float* x[M];
  float out[M][R];
  for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const float*>(job.x[first_token + m]);
  float_dots<Load, R, M>(job.data + row * job.stride, job.stride, job.k, x, out, pf);
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) job.out[first_token + m][row - job.begin + r] = out[m][r];
  }
}

template <typename Load, int M>
void float_rows(const Job& job, int64_t begin, int64_t end, int64_t first_token, LinearPrefetch& pf) {
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) float_group<Load, 4, M>(job, row, first_token, pf);
  for (; row + 2 <= end; row += 2) float_group<Load, 2, M>(job, row, first_token, pf);
  for (; row < end; ++row) float_group<Load, 1, M>(job, row, first_token, pf);
}

template <typename Load>
void run_float(const Job& job) {
  // All tokens pass over as many rows as stay in L2.
  constexpr int64_t kRowBytes = 256 * 1024;
  const int64_t fit = job.stride > 0 ? kRowBytes / job.stride / 4 * 4 : 4;
  const int64_t step = fit < 4 ? 4 : fit;
  const uint8_t* last = job.data + (job.end - 1) * job.stride;
  for (int64_t begin = job.begin; begin < job.end; begin += step) {
    const int64_t end = begin + step < job.end ? begin + step : job.end;
    LinearPrefetch pf{job.data + begin * job.stride + kPrefetchBytes, last,
                      end == job.end ? job.next : nullptr};
    LinearPrefetch none{last, last};
    for (int64_t m = 0; m < job.n_tokens; m += 3) {
      LinearPrefetch& p = m == 0 ? pf : none;
      const int64_t left = job.n_tokens - m;
      if (left >= 3) {
        float_rows<Load, 3>(job, begin, end, m, p);
      } else if (left == 2) {
        float_rows<Load, 2>(job, begin, end, m, p);
      } else {
        float_rows<Load, 1>(job, begin, end, m, p);
      }
    }
  }
}
