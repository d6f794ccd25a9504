// Types of 256 values with integer sub-scales. `unpack` calls emit(g, w, scale) for every group g of kGroup
// values with w[i] = codes of values 4i..4i+3 (up to kMax), scale = int16 twice in each lane. kBias was added
// to every code; kMinPairs pairs of mins meet the sums of activations.

struct Header {
  __m256i b[8];  // pairs of scales, where kBias != 0
  __m256i m[8];  // pairs of mins
  __m256 d;
  __m256 dmin;
};

// Even or odd bytes of four byte values as int16: the order of pair_low and pair_high.
SYNOD_INLINE __m256i even_bytes(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi32(0x00ff00ff)); }
SYNOD_INLINE __m256i odd_bytes(__m256i v) { return even_bytes(_mm256_srli_epi32(v, 8)); }
SYNOD_INLINE void signed_pairs(__m256i v, __m256i* pairs) {
  pairs[0] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
  pairs[1] = _mm256_srai_epi16(v, 8);
}

// Byte j of each dword as a signed int16, twice.
SYNOD_INLINE __m256i twice(__m256i v, int j) {
  const __m256i order =
      _mm256_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0, 0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  // The byte in all four places; as int16 the upper copy carries the value.
  return _mm256_srai_epi16(_mm256_shuffle_epi8(v, _mm256_add_epi8(order, bytes_of(j))), 8);
}

struct Super {
  static constexpr int kBias = 0;
  static constexpr int kMinPairs = 0;
  static constexpr bool kSigned = false;
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }
};

// Six-bit scales and mins of Q4_K and Q5_K as bytes: sc[0], mn[0] groups 0-3, [1] groups 4-7.
SYNOD_INLINE void k_header(const Rows8& r, __m256i (&sc)[2], Header& out) {
  __m256i h[4];
  tr8(r.p, r.stride, h);
  const __m256i six = bytes_of(63);
  const __m256i two = bytes_of(0x30);
  sc[0] = _mm256_and_si256(h[1], six);
  sc[1] = _mm256_or_si256(low_nibbles(h[3]), _mm256_and_si256(_mm256_srli_epi32(h[1], 2), two));
  const __m256i mn[2] = {
      _mm256_and_si256(h[2], six),
      _mm256_or_si256(high_nibbles(h[3]), _mm256_and_si256(_mm256_srli_epi32(h[2], 2), two))};
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    out.m[2 * i] = even_bytes(mn[i]);
    out.m[2 * i + 1] = odd_bytes(mn[i]);
  }
  out.d = f16_low(h[0]);
  out.dmin = f16_high(h[0]);
}

struct Q4_K : Super {
  using Block = BlockQ4_K;
  static constexpr int kMax = 15;
  static constexpr int kGroup = 32;
  static constexpr int kMinPairs = 4;
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& x) { return x.pair32; }

  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    __m256i sc[2];
    k_header(r, sc, out);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m256i v[8];
      __m256i w[8];
      tr8(r.p + 16 + 32 * c, r.stride, v);
      tr8(r.p + 32 + 32 * c, r.stride, v + 4);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = low_nibbles(v[i]);
      emit(2 * c, w, twice(sc[c / 2], 2 * c % 4));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = high_nibbles(v[i]);
      emit(2 * c + 1, w, twice(sc[c / 2], 2 * c % 4 + 1));
    }
  }
};

struct Q5_K : Super {
  using Block = BlockQ5_K;
  static constexpr int kMax = 31;
  static constexpr int kGroup = 32;
  static constexpr int kMinPairs = 4;
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& x) { return x.pair32; }

  // Bit g of every byte as bit 4.
  SYNOD_INLINE __m256i fifth_bit(__m256i high, int g) {
    const __m256i shifted = g < 4 ? _mm256_slli_epi32(high, 4 - g) : _mm256_srli_epi32(high, g - 4);
    return _mm256_and_si256(shifted, bytes_of(16));
  }

  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    __m256i sc[2];
    __m256i high[8];
    k_header(r, sc, out);
    tr8(r.p + 16, r.stride, high);
    tr8(r.p + 32, r.stride, high + 4);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m256i v[8];
      __m256i w[8];
      tr8(r.p + 48 + 32 * c, r.stride, v);
      tr8(r.p + 64 + 32 * c, r.stride, v + 4);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = _mm256_or_si256(low_nibbles(v[i]), fifth_bit(high[i], 2 * c));
      emit(2 * c, w, twice(sc[c / 2], 2 * c % 4));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = _mm256_or_si256(high_nibbles(v[i]), fifth_bit(high[i], 2 * c + 1));
      emit(2 * c + 1, w, twice(sc[c / 2], 2 * c % 4 + 1));
    }
  }
};

struct Q6_K : Super {
  using Block = BlockQ6_K;
  static constexpr int kMax = 63;
  static constexpr int kBias = 32;
  static constexpr int kGroup = 16;

  // Bits 2t and 2t + 1 of every byte as bits 4 and 5.
  SYNOD_INLINE __m256i high_bits(__m256i h, int t) {
    const __m256i shifted = t < 2 ? _mm256_slli_epi32(h, 4 - 2 * t) : _mm256_srli_epi32(h, 2 * t - 4);
    return _mm256_and_si256(shifted, bytes_of(0x30));
  }

  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    __m256i sc[4];
    tr8(r.p + 192, r.stride, sc);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) signed_pairs(sc[i], out.b + 2 * i);
    out.d = f16_high(gather(r, 206));  // d ends the block: a dword at 208 would pass it
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
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
          emit(g, w, twice(sc[g / 4], g % 4));
        }
      }
    }
  }
};

struct Q2_K : Super {
  using Block = BlockQ2_K;
  static constexpr int kMax = 3;
  static constexpr int kGroup = 16;
  static constexpr int kMinPairs = 8;
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& x) { return x.pair16; }

  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    __m256i sc[4];
    tr8(r.p, r.stride, sc);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i mins = high_nibbles(sc[i]);
      out.m[2 * i] = even_bytes(mins);
      out.m[2 * i + 1] = odd_bytes(mins);
      sc[i] = low_nibbles(sc[i]);
    }
    const __m256i dd = gather(r, 80);
    out.d = f16_low(dd);
    out.dmin = f16_high(dd);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        __m256i v[4];
        tr8(r.p + 16 + 32 * n + 16 * u, r.stride, v);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          __m256i w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) w[i] = _mm256_and_si256(_mm256_srli_epi32(v[i], 2 * t), bytes_of(3));
          const int g = 8 * n + 2 * t + u;
          emit(g, w, twice(sc[g / 4], g % 4));
        }
      }
    }
  }
};

struct Q3_K : Super {
  using Block = BlockQ3_K;
  static constexpr int kMax = 7;
  static constexpr int kBias = 4;
  static constexpr int kGroup = 16;

  // Bit `from` of every byte as bit 2.
  SYNOD_INLINE __m256i third_bit(__m256i v, int from) {
    const __m256i shifted = from < 2 ? _mm256_slli_epi32(v, 2 - from) : _mm256_srli_epi32(v, from - 2);
    return _mm256_and_si256(shifted, bytes_of(4));
  }

  // The six-bit scales less 32 as bytes, from the block's last 16 bytes: 2 of q, 12 of scales, d.
  SYNOD_INLINE void scale_bytes(const __m256i (&end)[4], __m256i (&sc)[4]) {
    __m256i s[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      s[i] = _mm256_or_si256(_mm256_srli_epi32(end[i], 16), _mm256_slli_epi32(end[i + 1], 16));
    }
    const __m256i two = bytes_of(0x30);
    sc[0] = _mm256_or_si256(low_nibbles(s[0]), _mm256_and_si256(_mm256_slli_epi32(s[2], 4), two));
    sc[1] = _mm256_or_si256(low_nibbles(s[1]), _mm256_and_si256(_mm256_slli_epi32(s[2], 2), two));
    sc[2] = _mm256_or_si256(high_nibbles(s[0]), _mm256_and_si256(s[2], two));
    sc[3] = _mm256_or_si256(high_nibbles(s[1]), _mm256_and_si256(_mm256_srli_epi32(s[2], 2), two));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sc[i] = _mm256_sub_epi8(sc[i], bytes_of(32));
  }

  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    __m256i end[4];
    __m256i sc[4];
    __m256i high[8];
    tr8(r.p + 94, r.stride, end);
    scale_bytes(end, sc);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) signed_pairs(sc[i], out.b + 2 * i);
    out.d = f16_high(end[3]);
    tr8(r.p, r.stride, high);
    tr8(r.p + 16, r.stride, high + 4);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        __m256i v[4];
        tr8(r.p + 32 + 32 * n + 16 * u, r.stride, v);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          __m256i w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m256i low = _mm256_and_si256(_mm256_srli_epi32(v[i], 2 * t), bytes_of(3));
            w[i] = _mm256_or_si256(low, third_bit(high[4 * u + i], 4 * n + t));
          }
          const int g = 8 * n + 2 * t + u;
          emit(g, w, twice(sc[g / 4], g % 4));
        }
      }
    }
  }
};

struct IQ4_XS : Super {
  using Block = BlockIQ4_XS;
  static constexpr int kMax = 127;
  static constexpr bool kSigned = true;
  static constexpr int kGroup = 32;

  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    const __m256i table = table16(kIq4Values, 0);
    const __m256i first = gather(r, 0);  // d, two high bits per scale
    const __m256i low = gather(r, 4);
    const __m256i high = _mm256_srli_epi32(first, 16);
    out.d = f16_low(first);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      __m256i w[8];
      nibbles32(r.p + 8 + 16 * g, r.stride, w);
      look_up(table, w);
      const __m256i four = _mm256_and_si256(_mm256_srli_epi32(low, 4 * g), _mm256_set1_epi32(15));
      const __m256i two = _mm256_and_si256(_mm256_srli_epi32(high, 2 * g), _mm256_set1_epi32(3));
      const __m256i scale = _mm256_or_si256(four, _mm256_slli_epi32(two, 4));
      const __m256i both = _mm256_or_si256(scale, _mm256_slli_epi32(scale, 16));
      emit(g, w, _mm256_sub_epi16(both, _mm256_set1_epi16(32)));
    }
  }
};

// The one-row and the tile kernel of such a type, for drivers.inl.
template <typename T>
struct Blocks256 {
  using Chunk = Chunk256;
  static constexpr int kBytes = sizeof(typename T::Block);
  static constexpr int kPerChunk = 1;
  static constexpr int kGroups = 256 / T::kGroup;
  static constexpr int kQuads = T::kGroup / 4;
  static_assert(T::kBias == 0 || T::kGroup == 16);

  // Adds the block whose codes gave `sum`; `b`, `m`: pairs of scales and of mins.
  SYNOD_INLINE __m256 add_block(__m256 acc, const Chunk256& x, __m256 d, __m256i sum, const __m256i* b,
                                __m256 dmin, const __m256i* m) {
    if constexpr (T::kBias != 0) {
      const __m256i excess = pair_sums<8>(b, x.pair16);
      sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(excess, _mm256_set1_epi32(T::kBias)));
    }
    acc = add_scaled(acc, d, x.d, sum);
    if constexpr (T::kMinPairs > 0) {
      const __m256 factor = _mm256_mul_ps(dmin, _mm256_set1_ps(x.d));
      acc = _mm256_fnmadd_ps(factor, _mm256_cvtepi32_ps(pair_sums<T::kMinPairs>(m, T::min_sums(x))), acc);
    }
    return acc;
  }

  template <int M>
  SYNOD_INLINE void block(const Rows8& r, int /*b*/, const Chunk256* const (&x)[M], __m256 (&acc)[M]) {
    Header head;
    __m256i sum[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) sum[m] = _mm256_setzero_si256();
    T::unpack(
        r, head, [&](int g, const __m256i(&w)[kQuads], __m256i scale) __attribute__((always_inline)) {
#pragma GCC unroll 4
          for (int m = 0; m < M; ++m) {
            sum[m] = add_products<T::kMax, T::kSigned, kQuads>(sum[m], w, x[m]->q + T::kGroup * g, scale);
          }
        });
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[m] = add_block(acc[m], *x[m], head.d, sum[m], head.b, head.dmin, head.m);
  }

  SYNOD_INLINE void fill(const Rows8& r, int /*b*/, int h, Tile& tile) {
    Header head;
    T::unpack(
        r, head, [&](int g, const __m256i(&w)[kQuads], __m256i scale) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int i = 0; i < kQuads; ++i) tile.w[kQuads * g + i][h] = w[i];
          tile.s[g][h] = scale;
        });
    if constexpr (T::kBias != 0) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) tile.b[i][h] = head.b[i];
    }
    if constexpr (T::kMinPairs > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < T::kMinPairs; ++i) tile.t[i][h] = head.m[i];
      tile.m[0][h] = head.dmin;
    }
    tile.d[0][h] = head.d;
  }

  template <int M>
  SYNOD_INLINE void micro(const Tile& tile, int /*n_blocks*/, const Chunk256* const (&x)[M], float* park) {
    __m256i sum[M][2];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = _mm256_setzero_si256();
    for (int g = 0; g < kGroups; ++g) {
      const int8_t* q[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) q[m] = x[m]->q + T::kGroup * g;
      add_tile_products<T::kMax, T::kSigned, kQuads, M>(sum, tile.w + kQuads * g, q, tile.s[g]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        __m256i b[8];
        __m256i t[8];
        if constexpr (T::kBias != 0) {
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) b[i] = tile.b[i][h];
        }
#pragma GCC unroll 8
        for (int i = 0; i < T::kMinPairs; ++i) t[i] = tile.t[i][h];
        float* at = park + kParkRows * m + 8 * h;
        _mm256_store_ps(at,
                        add_block(_mm256_load_ps(at), *x[m], tile.d[0][h], sum[m][h], b, tile.m[0][h], t));
      }
    }
  }
};
