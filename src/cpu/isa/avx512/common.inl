// Shared by all AVX-512 kernels. The scheme: 16 output rows are the 16 lanes of a register. A dword of stored
// codes holds four consecutive k of one row, so a broadcast of four activations meets it in one vpdpbusd and
// there are no horizontal sums; block headers of 16 rows are decoded at once.

#define SYNOD_INLINE static inline __attribute__((always_inline))

// Sixteen rows, `p` at the current block of the first.
struct Rows16 {
  const uint8_t* p;
  int64_t stride;
};

// r[w], lane i: bytes 4w..4w+3 at p + i * stride. Reads 16 bytes of each row.
SYNOD_INLINE void tr16(const uint8_t* p, int64_t stride, __m512i* r) {
  const auto rows = [&](int j) __attribute__((always_inline)) {  // rows j, j + 4, j + 8, j + 12
    const uint8_t* q = p + j * stride;
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 4 * stride)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 8 * stride)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + 12 * stride)), 3);
  };
  const __m512i a = rows(0);
  const __m512i b = rows(1);
  const __m512i c = rows(2);
  const __m512i d = rows(3);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d);
  const __m512i cd_high = _mm512_unpackhi_epi32(c, d);
  r[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  r[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  r[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  r[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// The dword at byte kOffset of the block of each row. Part of a transposition (what the others need of it is
// dead code here): AMD runs vpgatherdd as 40 cycles of microcode, some Intel CPUs mitigate it.
template <typename Block, int kOffset>
SYNOD_INLINE __m512i dword_at(const Rows16& rows) {
  constexpr bool kFits = kOffset + 16 <= static_cast<int>(sizeof(Block));
  static_assert(kFits || kOffset >= 12);
  __m512i r[4];
  tr16(rows.p + (kFits ? kOffset : kOffset - 12), rows.stride, r);
  return r[kFits ? 0 : 3];
}

// f16 in the low, in the high half of each dword.
SYNOD_INLINE __m512 f16_low(__m512i v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
SYNOD_INLINE __m512 f16_high(__m512i v) { return f16_low(_mm512_srli_epi32(v, 16)); }

SYNOD_INLINE __m512i bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
SYNOD_INLINE __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, bytes_of(15)); }
SYNOD_INLINE __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi32(v, 4)); }

SYNOD_INLINE __m512i broadcast(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, sizeof(v));
  return _mm512_set1_epi32(v);
}

SYNOD_INLINE __m512i look_up(__m512i table, __m512i nibbles) { return _mm512_shuffle_epi8(table, nibbles); }

SYNOD_INLINE __m512i table16(const int8_t (&values)[16], int offset) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  return _mm512_broadcast_i32x4(_mm_add_epi8(v, _mm_set1_epi8(static_cast<char>(offset))));
}

// 16 bytes at p: the low halves are values 0-15, the high halves 16-31.
SYNOD_INLINE void nibbles32(const uint8_t* p, int64_t stride, __m512i (&w)[8]) {
  __m512i v[4];
  tr16(p, stride, v);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    w[i] = low_nibbles(v[i]);
    w[i + 4] = high_nibbles(v[i]);
  }
}

// Prefetches a later group of 16 rows, which is contiguous in the file, while the current one is computed.
struct Prefetch {
  const uint8_t* p;
  template <int kBytes>
  __attribute__((always_inline)) void next() {
#pragma GCC unroll 16
    for (int i = 0; i < (kBytes + 63) / 64; ++i) _mm_prefetch(p + 64 * i, _MM_HINT_T1);
    p += kBytes;
  }
};

struct NoPrefetch {
  template <int kBytes>
  __attribute__((always_inline)) void next() {}
};

// Brings what the next call of a micro kernel reads from L2 to L1, an eighth at each of its eight steps: a
// chunk of each of its tokens, and their sums. In one burst the prefetches would fill the line buffers.
struct TokensAhead {
  const std::byte* const* records;
  int64_t offset;  // of the chunk in a record
  const float* park;
  template <int M>
  __attribute__((always_inline)) void step(int i) const {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      if (i < 7) {
        _mm_prefetch(records[m] + offset + 64 * i, _MM_HINT_T0);
      } else {
        _mm_prefetch(park + kTileRows * m, _MM_HINT_T0);
        _mm_prefetch(park + kTileRows * m + 16, _MM_HINT_T0);
      }
    }
  }
};
static_assert(sizeof(Chunk32) == 7 * 64 && sizeof(Chunk256) == 7 * 64);

struct NothingAhead {
  template <int M>
  __attribute__((always_inline)) void step(int) const {}
};

// a[m] += four-wise products of w[i] with the activations from k on.
template <int N, int M, typename Chunk>
SYNOD_INLINE void dots(const __m512i (&w)[N], const Chunk* const (&x)[M], int k, __m512i (&a)[M]) {
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) a[m] = _mm512_dpbusd_epi32(a[m], w[i], broadcast(x[m]->q + k + 4 * i));
  }
}

// 32 rows x 256 values, unpacked.
struct Tile {
  __m512i w[64][2];  // unsigned codes of k = 4i..4i+3
  __m512i s[16][2];  // integer sub-scales
  __m512i t[8][2];   // pairs of integer mins
  __m512 d[8][2];
  __m512 m[8][2];
};
static_assert(sizeof(Tile) <= kTileBytes);
