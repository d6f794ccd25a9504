// Types with one scale per 32 values. `codes` gives w[i] = codes of values 4i..4i+3, up to kMax; `offset` is
// the term that removes what made them unsigned.

// 16 bytes at p: the low halves are values 0-15, the high halves 16-31.
SYNOD_INLINE void nibbles32(const uint8_t* p, int64_t stride, __m256i (&w)[8]) {
  __m256i v[4];
  tr8(p, stride, v);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    w[i] = low_nibbles(v[i]);
    w[i + 4] = high_nibbles(v[i]);
  }
}

// Adds bit i of the dword h of each row as bit 4 of value i.
SYNOD_INLINE void add_fifth_bits(__m256i h, __m256i (&w)[8]) {
  const __m256i bit = bytes_of(16);
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    // Byte b of each dword, four times; bits 0-3 belong to w[2b], bits 4-7 to w[2b + 1].
    const __m256i order = _mm256_add_epi8(
        _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0),
        bytes_of(b));
    const __m256i copies = _mm256_shuffle_epi8(h, order);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i one =
          half == 0 ? _mm256_set1_epi32(0x08040201) : _mm256_set1_epi32(static_cast<int>(0x80402010U));
      const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, one), one);
      w[2 * b + half] = _mm256_or_si256(w[2 * b + half], _mm256_and_si256(is_set, bit));
    }
  }
}

struct Plain32 {
  static constexpr bool kHasMin = false;
  static constexpr bool kSigned = false;
  SYNOD_INLINE void scales(const Rows8& r, __m256& d, __m256& /*m*/) { d = f16_low(gather(r, 0)); }
  SYNOD_INLINE const int32_t* offset(const Chunk32& /*x*/) { return nullptr; }
};

struct WithMin32 : Plain32 {
  static constexpr bool kHasMin = true;
  SYNOD_INLINE void scales(const Rows8& r, __m256& d, __m256& m) {
    const __m256i v = gather(r, 0);
    d = f16_low(v);
    m = f16_high(v);
  }
};

struct Q8_0 : Plain32 {
  using Block = BlockQ8_0;
  static constexpr int kMax = 128;
  static constexpr bool kSigned = true;
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) {
    tr8(r.p + 2, r.stride, w);
    tr8(r.p + 18, r.stride, w + 4);
  }
};

struct Q4_0 : Plain32 {
  using Block = BlockQ4_0;
  static constexpr int kMax = 15;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n8; }
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) { nibbles32(r.p + 2, r.stride, w); }
};

struct Q4_1 : WithMin32 {
  using Block = BlockQ4_1;
  static constexpr int kMax = 15;
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) { nibbles32(r.p + 4, r.stride, w); }
};

struct Q5_0 : Plain32 {
  using Block = BlockQ5_0;
  static constexpr int kMax = 31;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n16; }
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) {
    nibbles32(r.p + 6, r.stride, w);
    add_fifth_bits(gather(r, 2), w);
  }
};

struct Q5_1 : WithMin32 {
  using Block = BlockQ5_1;
  static constexpr int kMax = 31;
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) {
    nibbles32(r.p + 8, r.stride, w);
    add_fifth_bits(gather(r, 4), w);
  }
};

struct IQ4_NL : Plain32 {
  using Block = BlockIQ4_NL;
  static constexpr int kMax = 127;
  static constexpr bool kSigned = true;
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) {
    nibbles32(r.p + 2, r.stride, w);
    look_up(table16(kIq4Values, 0), w);
  }
};

struct MXFP4 : Plain32 {
  using Block = BlockMXFP4;
  static constexpr int kMax = 24;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n12; }
  SYNOD_INLINE void codes(const Rows8& r, __m256i (&w)[8]) {
    nibbles32(r.p + 1, r.stride, w);
    look_up(table16(kE2m1Doubled, 12), w);
  }
  // 2^(e - 128): subnormal for e of 0 and 1.
  SYNOD_INLINE void scales(const Rows8& r, __m256& d, __m256& /*m*/) {
    const __m256i e = _mm256_and_si256(gather(r, 0), _mm256_set1_epi32(255));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
    d = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
  }
};

// The one-row and the tile kernel of such a type, for drivers.inl.
template <typename T>
struct Blocks32 {
  using Chunk = Chunk32;
  static constexpr int kBytes = sizeof(typename T::Block);
  static constexpr int kPerChunk = 8;

  SYNOD_INLINE __m256i start(const Chunk32& x, int b) {
    const int32_t* offset = T::offset(x);
    return offset == nullptr ? _mm256_setzero_si256() : broadcast(offset + b);
  }
  SYNOD_INLINE __m256 add_min(__m256 acc, __m256 min, const Chunk32& x, int b) {
    const __m256 factor = _mm256_mul_ps(min, _mm256_set1_ps(x.d[b]));
    return _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(broadcast(x.sum + b)), acc);
  }

  template <int M>
  SYNOD_INLINE void block(const Rows8& r, int b, const Chunk32* const (&x)[M], __m256 (&acc)[M]) {
    __m256i w[8];
    __m256 d;
    __m256 min;
    T::codes(r, w);
    T::scales(r, d, min);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m256i sum =
          add_products<T::kMax, T::kSigned, 8>(start(*x[m], b), w, x[m]->q + 32 * b, _mm256_set1_epi16(1));
      acc[m] = add_scaled(acc[m], d, x[m]->d[b], sum);
      if constexpr (T::kHasMin) acc[m] = add_min(acc[m], min, *x[m], b);
    }
  }

  SYNOD_INLINE void fill(const Rows8& r, int b, int h, Tile& tile) {
    __m256i w[8];
    T::codes(r, w);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) tile.w[8 * b + i][h] = w[i];
    T::scales(r, tile.d[b][h], tile.m[b][h]);
  }

  template <int M>
  SYNOD_INLINE void micro(const Tile& tile, int n_blocks, const Chunk32* const (&x)[M], float* park) {
    const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    for (int b = 0; b < n_blocks; ++b) {
      __m256i a[M][2];
      const int8_t* q[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        a[m][0] = a[m][1] = start(*x[m], b);
        q[m] = x[m]->q + 32 * b;
      }
      add_tile_products<T::kMax, T::kSigned, 8, M>(a, tile.w + 8 * b, q, ones);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          float* at = park + kParkRows * m + 8 * h;
          __m256 acc = add_scaled(_mm256_load_ps(at), tile.d[b][h], x[m]->d[b], a[m][h]);
          if constexpr (T::kHasMin) acc = add_min(acc, tile.m[b][h], *x[m], b);
          _mm256_store_ps(at, acc);
        }
      }
    }
  }
};
