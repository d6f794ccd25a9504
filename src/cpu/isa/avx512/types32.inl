// Types with one scale per 32 values. `codes` gives w[i] = unsigned codes of values 4i..4i+3; `offset` is the
// term that removes what made them unsigned.

// Adds bit i of the dword h of each row as bit 4 of value i.
SYNOD_INLINE void add_fifth_bits(__m512i h, __m512i (&w)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    // Byte j of an even lane takes the 8 bits from bit 4i + j - 4 of its qword; of an odd lane 32 later.
    const uint64_t first = 0x03020100U + 0x01010101U * static_cast<uint32_t>(4 * i + 60);
    const uint64_t even = first & 0x3f3f3f3fU;
    const uint64_t control = even | (even ^ 0x20202020U) << 32;
    const __m512i bits = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<int64_t>(control)), h);
    w[i] = _mm512_ternarylogic_epi32(w[i], bits, bytes_of(16), 0xf8);  // w | (bits & 16)
  }
}

struct Q8_0 {
  using Block = BlockQ8_0;
  static constexpr bool kHasMin = false;
  static constexpr int kTileFrom = 12;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n128; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) {
    tr16(r.p + 2, r.stride, w);
    tr16(r.p + 18, r.stride, w + 4);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) w[i] = _mm512_xor_si512(w[i], bytes_of(0x80));
  }
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& /*m*/) { d = f16_low(dword_at<Block, 0>(r)); }
};

struct Q4_0 {
  using Block = BlockQ4_0;
  static constexpr bool kHasMin = false;
  static constexpr int kTileFrom = 9;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n8; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) { nibbles32(r.p + 2, r.stride, w); }
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& /*m*/) { d = f16_low(dword_at<Block, 0>(r)); }
};

struct Q4_1 {
  using Block = BlockQ4_1;
  static constexpr bool kHasMin = true;
  static constexpr int kTileFrom = 9;
  SYNOD_INLINE const int32_t* offset(const Chunk32& /*x*/) { return nullptr; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) { nibbles32(r.p + 4, r.stride, w); }
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& m) {
    const __m512i v = dword_at<Block, 0>(r);
    d = f16_low(v);
    m = f16_high(v);
  }
};

struct Q5_0 {
  using Block = BlockQ5_0;
  static constexpr bool kHasMin = false;
  static constexpr int kTileFrom = 12;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n16; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) {
    nibbles32(r.p + 6, r.stride, w);
    const __m512i low = _mm512_srli_epi32(dword_at<Block, 0>(r), 16);
    add_fifth_bits(_mm512_or_si512(low, _mm512_slli_epi32(dword_at<Block, 4>(r), 16)), w);
  }
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& /*m*/) { d = f16_low(dword_at<Block, 0>(r)); }
};

struct Q5_1 {
  using Block = BlockQ5_1;
  static constexpr bool kHasMin = true;
  static constexpr int kTileFrom = 12;
  SYNOD_INLINE const int32_t* offset(const Chunk32& /*x*/) { return nullptr; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) {
    nibbles32(r.p + 8, r.stride, w);
    add_fifth_bits(dword_at<Block, 4>(r), w);
  }
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& m) { Q4_1::scales(r, d, m); }
};

struct MXFP4 {
  using Block = BlockMXFP4;
  static constexpr bool kHasMin = false;
  static constexpr int kTileFrom = 9;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n12; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) {
    nibbles32(r.p + 1, r.stride, w);
    const __m512i table = table16(kE2m1Doubled, 12);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) w[i] = look_up(table, w[i]);
  }
  // 2^(e - 128): subnormal for e of 0 and 1.
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& /*m*/) {
    const __m512i e = _mm512_and_si512(dword_at<Block, 0>(r), _mm512_set1_epi32(255));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    d = _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_small, small));
  }
};

struct IQ4_NL {
  using Block = BlockIQ4_NL;
  static constexpr bool kHasMin = false;
  static constexpr int kTileFrom = 9;
  SYNOD_INLINE const int32_t* offset(const Chunk32& x) { return x.n128; }
  SYNOD_INLINE void codes(const Rows16& r, __m512i (&w)[8]) {
    nibbles32(r.p + 2, r.stride, w);
    const __m512i table = table16(kIq4Values, 128);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) w[i] = look_up(table, w[i]);
  }
  SYNOD_INLINE void scales(const Rows16& r, __m512& d, __m512& /*m*/) { d = f16_low(dword_at<Block, 0>(r)); }
};

// The one-row and the tile kernel of such a type, for the drivers in drivers.inl.
template <typename T>
struct Blocks32 {
  using Chunk = Chunk32;
  static constexpr int kBytes = sizeof(typename T::Block);
  static constexpr int kPerChunk = 8;
  static constexpr int kTileFrom = T::kTileFrom;
  static constexpr int kTileTokens = 6;

  SYNOD_INLINE __m512i start(const Chunk32& x, int b) {
    const int32_t* offset = T::offset(x);
    return offset == nullptr ? _mm512_setzero_si512() : broadcast(offset + b);
  }

  // Adds block `b` of a chunk: one block of 16 rows for M tokens.
  template <int M>
  SYNOD_INLINE void block(const Rows16& r, int b, const Chunk32* const (&x)[M], __m512 (&acc)[M],
                          Prefetch& pf) {
    pf.next<16 * kBytes>();
    __m512i w[8];
    T::codes(r, w);
    __m512 d;
    __m512 min;
    T::scales(r, d, min);
    __m512i a[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) a[m] = start(*x[m], b);
    dots(w, x, 32 * b, a);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const __m512 dx = _mm512_set1_ps(x[m]->d[b]);
      acc[m] = _mm512_fmadd_ps(_mm512_mul_ps(d, dx), _mm512_cvtepi32_ps(a[m]), acc[m]);
      if constexpr (T::kHasMin) {
        const __m512 sum = _mm512_cvtepi32_ps(broadcast(x[m]->sum + b));
        acc[m] = _mm512_fmadd_ps(_mm512_mul_ps(min, dx), sum, acc[m]);
      }
    }
  }

  // Unpacks block `b` of a chunk into half `h` of the tile.
  SYNOD_INLINE void fill(const Rows16& r, int b, int h, Tile& tile) {
    __m512i w[8];
    T::codes(r, w);
    __m512 min;
    T::scales(r, tile.d[b][h], min);  // before other stores: it shares its loads with codes
    if constexpr (T::kHasMin) tile.m[b][h] = min;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) tile.w[8 * b + i][h] = w[i];
  }

  // acc[m] += tile * token m over n_blocks blocks.
  template <int M, typename Ahead>
  SYNOD_INLINE void micro(const Tile& tile, int n_blocks, const Chunk32* const (&x)[M], float* park,
                          const Ahead& ahead) {
    __m512 acc[M][2];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      acc[m][0] = _mm512_load_ps(park + 32 * m);
      acc[m][1] = _mm512_load_ps(park + 32 * m + 16);
    }
    for (int b = 0; b < n_blocks; ++b) {
      ahead.template step<M>(b);
      __m512i a[M][2];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) a[m][0] = a[m][1] = start(*x[m], b);
      const __m512i(*w)[2] = tile.w + 8 * b;
      const int64_t k = 32 * b;
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m512i w0 = w[i][0];
        const __m512i w1 = w[i][1];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          const __m512i q = broadcast(x[m]->q + k + 4 * i);
          a[m][0] = _mm512_dpbusd_epi32(a[m][0], w0, q);
          a[m][1] = _mm512_dpbusd_epi32(a[m][1], w1, q);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const __m512 dx = _mm512_set1_ps(x[m]->d[b]);
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          acc[m][h] =
              _mm512_fmadd_ps(_mm512_mul_ps(tile.d[b][h], dx), _mm512_cvtepi32_ps(a[m][h]), acc[m][h]);
          if constexpr (T::kHasMin) {
            const __m512 sum = _mm512_cvtepi32_ps(broadcast(x[m]->sum + b));
            acc[m][h] = _mm512_fmadd_ps(_mm512_mul_ps(tile.m[b][h], dx), sum, acc[m][h]);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      _mm512_store_ps(park + 32 * m, acc[m][0]);
      _mm512_store_ps(park + 32 * m + 16, acc[m][1]);
    }
  }
};
