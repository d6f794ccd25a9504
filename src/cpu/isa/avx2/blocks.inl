// One-row kernels of block types: F::block adds one block of 8 rows for M tokens.

struct Q8_0 {
  using Chunk = Chunk32;
  static constexpr int kBytes = sizeof(BlockQ8_0);
  static constexpr int kPerChunk = 8;

  // |w| <= 128 and |q| <= 127: a pair of products is at most 32512, so signs move onto the activations.
  template <int M>
  SYNOD_INLINE void block(const Rows8& r, int b, const Chunk32* const (&x)[M], __m256 (&acc)[M]) {
    __m256i w[8];
    tr8(r.p + 2, r.stride, w);
    tr8(r.p + 18, r.stride, w + 4);
    const __m256 d = f16_low(gather(r, 0));
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m256i q = _mm256_sign_epi8(broadcast(x[m]->q + 32 * b + 4 * i), w[i]);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), q), ones));
      }
      acc[m] = add_scaled(acc[m], d, x[m]->d[b], sum);
    }
  }
};

struct Q5_0 {
  using Chunk = Chunk32;
  static constexpr int kBytes = sizeof(BlockQ5_0);
  static constexpr int kPerChunk = 8;

  // Bit j of a dword's four low bits (`h` shifted so that they are the wanted ones) as bit 4 of byte j.
  SYNOD_INLINE __m256i spread_bits(__m256i h) {
    const __m256i pick = _mm256_set1_epi32(0x08040201);
    const __m256i copies = _mm256_shuffle_epi8(
        h, _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, pick), pick);
    return _mm256_and_si256(is_set, bytes_of(16));
  }

  // Codes are at most 31: four pairs give at most 4 * 2 * 31 * 127 = 31496.
  template <int M>
  SYNOD_INLINE void block(const Rows8& r, int b, const Chunk32* const (&x)[M], __m256 (&acc)[M]) {
    __m256i v[4];
    __m256i w[8];
    tr8(r.p + 6, r.stride, v);
    const __m256i h = gather(r, 2);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i nibbles = i < 4 ? low_nibbles(v[i % 4]) : high_nibbles(v[i % 4]);
      w[i] = _mm256_or_si256(nibbles, spread_bits(_mm256_srli_epi32(h, 4 * i)));
    }
    const __m256 d = f16_low(gather(r, 0));
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const int8_t* q = x[m]->q + 32 * b;
      const __m256i low = _mm256_madd_epi16(sums16<4>(w, q), ones);
      const __m256i high = _mm256_madd_epi16(sums16<4>(w + 4, q + 16), ones);
      const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(low, high), broadcast(x[m]->n16 + b));
      acc[m] = add_scaled(acc[m], d, x[m]->d[b], sum);
    }
  }
};

// Even or odd bytes of four byte values as int16: the order of pair_low and pair_high.
SYNOD_INLINE __m256i even_bytes(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi32(0x00ff00ff)); }
SYNOD_INLINE __m256i odd_bytes(__m256i v) { return even_bytes(_mm256_srli_epi32(v, 8)); }

// Byte j of each dword as int16, twice.
SYNOD_INLINE __m256i twice(__m256i v, int j) {
  const __m256i word = _mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * j), 24);
  return _mm256_or_si256(_mm256_slli_epi32(word, 16), _mm256_and_si256(word, _mm256_set1_epi32(0xffff)));
}

struct Q4_K {
  using Chunk = Chunk256;
  static constexpr int kBytes = sizeof(BlockQ4_K);
  static constexpr int kPerChunk = 1;

  // Codes are at most 15: eight pairs give at most 8 * 2 * 15 * 127 = 30480.
  template <int M>
  SYNOD_INLINE void block(const Rows8& r, int /*b*/, const Chunk256* const (&x)[M], __m256 (&acc)[M]) {
    __m256i h[4];
    tr8(r.p, r.stride, h);
    const __m256i six = bytes_of(63);
    const __m256i two = bytes_of(0x30);
    const __m256i sc[2] = {
        _mm256_and_si256(h[1], six),
        _mm256_or_si256(low_nibbles(h[3]), _mm256_and_si256(_mm256_srli_epi32(h[1], 2), two))};
    const __m256i mn[2] = {
        _mm256_and_si256(h[2], six),
        _mm256_or_si256(high_nibbles(h[3]), _mm256_and_si256(_mm256_srli_epi32(h[2], 2), two))};
    __m256i sum[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sum[m] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m256i v[8];
      tr8(r.p + 16 + 32 * c, r.stride, v);
      tr8(r.p + 32 + 32 * c, r.stride, v + 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int g = 2 * c + half;
        __m256i w[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) w[i] = half == 0 ? low_nibbles(v[i]) : high_nibbles(v[i]);
        const __m256i scale = twice(sc[g / 4], g % 4);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(sums16<8>(w, x[m]->q + 32 * g), scale));
        }
      }
    }
    const __m256 d = f16_low(h[0]);
    const __m256 dmin = f16_high(h[0]);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      __m256i mins = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i pair = i % 2 == 0 ? even_bytes(mn[i / 2]) : odd_bytes(mn[i / 2]);
        mins = _mm256_add_epi32(mins, _mm256_madd_epi16(pair, broadcast(x[m]->pair32 + i)));
      }
      acc[m] = add_scaled(acc[m], d, x[m]->d, sum[m]);
      const __m256 factor = _mm256_mul_ps(dmin, _mm256_set1_ps(x[m]->d));
      acc[m] = _mm256_fnmadd_ps(factor, _mm256_cvtepi32_ps(mins), acc[m]);
    }
  }
};

struct Q6_K {
  using Chunk = Chunk256;
  static constexpr int kBytes = sizeof(BlockQ6_K);
  static constexpr int kPerChunk = 1;

  // Bits 2t and 2t + 1 of every byte as bits 4 and 5.
  SYNOD_INLINE __m256i high_bits(__m256i h, int t) {
    const __m256i shifted = t < 2 ? _mm256_slli_epi32(h, 4 - 2 * t) : _mm256_srli_epi32(h, 2 * t - 4);
    return _mm256_and_si256(shifted, bytes_of(0x30));
  }

  // Codes 0..63 take two pairs at a time: 2 * 2 * 63 * 127 = 32004.
  template <int M>
  SYNOD_INLINE void block(const Rows8& r, int /*b*/, const Chunk256* const (&x)[M], __m256 (&acc)[M]) {
    __m256i sc[4];
    tr8(r.p + 192, r.stride, sc);
    __m256i sum[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sum[m] = _mm256_setzero_si256();
    for (int n = 0; n < 2; ++n) {
      for (int u = 0; u < 2; ++u) {
        __m256i low[2][4];
        __m256i h[4];
        tr8(r.p + 64 * n + 16 * u, r.stride, low[0]);
        tr8(r.p + 64 * n + 32 + 16 * u, r.stride, low[1]);
        tr8(r.p + 128 + 32 * n + 16 * u, r.stride, h);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          __m256i w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m256i bits = low[t % 2][i];
            w[i] = _mm256_or_si256(t < 2 ? low_nibbles(bits) : high_nibbles(bits), high_bits(h[i], t));
          }
          const int g = 8 * n + 2 * t + u;
          const __m256i scale = twice(sc[g / 4], g % 4);
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) {
            const int8_t* q = x[m]->q + 16 * g;
            const __m256i first = _mm256_madd_epi16(sums16<2>(w, q), scale);
            const __m256i second = _mm256_madd_epi16(sums16<2>(w + 2, q + 8), scale);
            sum[m] = _mm256_add_epi32(sum[m], _mm256_add_epi32(first, second));
          }
        }
      }
    }
    const __m256 d = f16_high(gather(r, 206));  // d ends the block: a dword at 208 would pass it
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      // Codes are 32 too large: take 32 * scale * (sum of 16) off.
      __m256i excess = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m256i s = sc[i / 2];
        const __m256i pair = _mm256_srai_epi16(i % 2 == 0 ? _mm256_slli_epi16(s, 8) : s, 8);
        excess = _mm256_add_epi32(excess, _mm256_madd_epi16(pair, broadcast(x[m]->pair16 + i)));
      }
      const __m256i total = _mm256_sub_epi32(sum[m], _mm256_slli_epi32(excess, 5));
      acc[m] = add_scaled(acc[m], d, x[m]->d, total);
    }
  }
};

template <typename F, int M>
void one_row(const Job& job, int64_t first_token) {
  using Chunk = typename F::Chunk;
  const Chunk* records[M];
  for (int m = 0; m < M; ++m) records[m] = reinterpret_cast<const Chunk*>(job.x[first_token + m]);
  const int64_t n_blocks = job.k / (kChunkValues / F::kPerChunk);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i index = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(static_cast<int>(job.stride)));
  for (int64_t row = job.begin; row < job.end; row += 8) {
    // A group never passes the last row of the matrix.
    const int64_t start = row + 8 <= job.n_rows ? row : job.n_rows - 8;
    Rows8 r{job.data + start * job.stride, job.stride, index};
    __m256 acc[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[m] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; ++b, r.p += F::kBytes) {
      const Chunk* x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        x[m] = records[m] + b / F::kPerChunk;
        // The same rows, one group on: contiguous bytes, but 8 streams to the hardware's eye.
        _mm_prefetch(r.p + (8 + m) * job.stride, _MM_HINT_T1);
      }
      F::block(r, static_cast<int>(b % F::kPerChunk), x, acc);
    }
    const int64_t stop = start + 8 < job.end ? start + 8 : job.end;
    for (int m = 0; m < M; ++m) {
      alignas(32) float values[8];
      _mm256_store_ps(values, acc[m]);
      for (int64_t i = row; i < stop; ++i) job.out[first_token + m][i - job.begin] = values[i - start];
    }
  }
}

template <typename F>
void run(const Job& job) {
  int64_t m = 0;
  for (; m + 4 <= job.n_tokens; m += 4) one_row<F, 4>(job, m);
  for (; m < job.n_tokens; ++m) one_row<F, 1>(job, m);
}
