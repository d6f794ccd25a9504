// Types of 256 values with integer sub-scales. `unpack` calls emit(g, w, scale) for every group g of kGroup
// values with w[i] = unsigned codes of values 4i..4i+3 of the group.

// Even or odd bytes of four byte values as int16: the order of pair_low and pair_high.
SYNOD_INLINE __m512i even_bytes(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi32(0x00ff00ff)); }
SYNOD_INLINE __m512i odd_bytes(__m512i v) { return even_bytes(_mm512_srli_epi32(v, 8)); }
// Byte j as i32.
SYNOD_INLINE __m512i unsigned_byte(__m512i v, int j) {
  return _mm512_and_si512(_mm512_srli_epi32(v, static_cast<unsigned>(8 * j)), _mm512_set1_epi32(255));
}
SYNOD_INLINE __m512i signed_byte(__m512i v, int j) {
  return _mm512_srai_epi32(_mm512_slli_epi32(v, static_cast<unsigned>(24 - 8 * j)), 24);
}

// Six-bit scales and mins of Q4_K and Q5_K as bytes: sc[0], mn[0] groups 0-3, [1] groups 4-7.
SYNOD_INLINE void k_scales(const __m512i (&h)[4], __m512i (&sc)[2], __m512i (&mn)[2]) {
  const __m512i six = bytes_of(63);
  const __m512i two = bytes_of(0x30);
  sc[0] = _mm512_and_si512(h[1], six);
  mn[0] = _mm512_and_si512(h[2], six);
  sc[1] = _mm512_or_si512(low_nibbles(h[3]), _mm512_and_si512(_mm512_srli_epi32(h[1], 2), two));
  mn[1] = _mm512_or_si512(high_nibbles(h[3]), _mm512_and_si512(_mm512_srli_epi32(h[2], 2), two));
}

SYNOD_INLINE void k_mins(const __m512i (&h)[4], const __m512i (&mn)[2], Header& out) {
  out.m[0] = even_bytes(mn[0]);
  out.m[1] = odd_bytes(mn[0]);
  out.m[2] = even_bytes(mn[1]);
  out.m[3] = odd_bytes(mn[1]);
  out.d = f16_low(h[0]);
  out.dmin = f16_high(h[0]);
}

struct Q4_K {
  using Block = BlockQ4_K;
  static constexpr Scaling kScaling = Scaling::kPairs;
  static constexpr int kGroup = 32;
  static constexpr int kMinPairs = 4;
  static constexpr int kTileFrom = 7;
  static constexpr int kTileTokens = 4;
  // With codes -8..7 a sum of 32 fits 16 bits: 8 * 127 * 32 = 32512.
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return broadcast(x.n8 + g); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& x) { return x.pair32; }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    __m512i h[4];
    __m512i sc[2];
    __m512i mn[2];
    pf.template next<256>();
    tr16(r.p, r.stride, h);
    k_scales(h, sc, mn);
    k_mins(h, mn, out);
    out.s[0] = even_bytes(sc[0]);
    out.s[1] = odd_bytes(sc[0]);
    out.s[2] = even_bytes(sc[1]);
    out.s[3] = odd_bytes(sc[1]);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[8];
      __m512i w[8];
      pf.template next<256>();
      tr16(r.p + 16 + 32 * c, r.stride, v);
      pf.template next<256>();
      tr16(r.p + 32 + 32 * c, r.stride, v + 4);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = low_nibbles(v[i]);
      emit(2 * c, w, sc[0]);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = high_nibbles(v[i]);
      emit(2 * c + 1, w, sc[0]);
    }
  }
};

struct Q5_K {
  using Block = BlockQ5_K;
  static constexpr Scaling kScaling = Scaling::kMultiply;
  static constexpr int kGroup = 32;
  static constexpr int kMinPairs = 4;
  static constexpr int kTileFrom = 7;
  static constexpr int kTileTokens = 4;
  SYNOD_INLINE __m512i start(const Chunk256& /*x*/, int /*g*/) { return _mm512_setzero_si512(); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& x) { return x.pair32; }

  // Bit g of every byte as bit 4.
  SYNOD_INLINE __m512i fifth_bit(__m512i high, int g) {
    return g < 4 ? _mm512_slli_epi32(high, static_cast<unsigned>(4 - g))
                 : _mm512_srli_epi32(high, static_cast<unsigned>(g - 4));
  }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    __m512i h[4];
    __m512i sc[2];
    __m512i mn[2];
    pf.template next<256>();
    tr16(r.p, r.stride, h);
    k_scales(h, sc, mn);
    k_mins(h, mn, out);
    __m512i high[8];
    pf.template next<512>();
    tr16(r.p + 16, r.stride, high);
    tr16(r.p + 32, r.stride, high + 4);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[8];
      __m512i w[8];
      pf.template next<512>();
      tr16(r.p + 48 + 32 * c, r.stride, v);
      tr16(r.p + 64 + 32 * c, r.stride, v + 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int g = 2 * c + half;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          const __m512i low = half == 0 ? low_nibbles(v[i]) : high_nibbles(v[i]);
          // low | (bit & 16)
          w[i] = _mm512_ternarylogic_epi32(low, fifth_bit(high[i], g), bytes_of(16), 0xf8);
        }
        emit(g, w, unsigned_byte(sc[g / 4], g % 4));
      }
    }
  }
};

struct Q6_K {
  using Block = BlockQ6_K;
  static constexpr Scaling kScaling = Scaling::kMultiply;
  static constexpr int kGroup = 16;
  static constexpr int kMinPairs = 0;
  static constexpr int kTileFrom = 7;
  static constexpr int kTileTokens = 4;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return broadcast(x.n32 + g); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }

  // Bits 2t and 2t + 1 of every byte as bits 4 and 5.
  SYNOD_INLINE __m512i high_bits(__m512i h, int t) {
    if (t == 2) return h;
    return t < 2 ? _mm512_slli_epi32(h, static_cast<unsigned>(4 - 2 * t)) : _mm512_srli_epi32(h, 2);
  }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    __m512i sc[4];
    pf.template next<256>();
    tr16(r.p + 192, r.stride, sc);
    pf.template next<32>();
    out.d = f16_high(dword_at<Block, 206>(r));  // d ends the block: a dword at 208 would pass it
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        __m512i low[2][4];
        __m512i h[4];
        pf.template next<768>();
        tr16(r.p + 64 * n + 16 * u, r.stride, low[0]);
        tr16(r.p + 64 * n + 32 + 16 * u, r.stride, low[1]);
        tr16(r.p + 128 + 32 * n + 16 * u, r.stride, h);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          __m512i w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m512i bits = low[t % 2][i];
            const __m512i nibble = t < 2 ? low_nibbles(bits) : high_nibbles(bits);
            // nibble | (high & 0x30)
            w[i] = _mm512_ternarylogic_epi32(nibble, high_bits(h[i], t), bytes_of(0x30), 0xf8);
          }
          const int g = 8 * n + 2 * t + u;
          emit(g, w, signed_byte(sc[g / 4], g % 4));
        }
      }
    }
  }
};

struct Q2_K {
  using Block = BlockQ2_K;
  static constexpr Scaling kScaling = Scaling::kFolded;
  static constexpr int kGroup = 16;
  static constexpr int kMinPairs = 8;
  static constexpr int kTileFrom = 5;
  static constexpr int kTileTokens = 8;
  SYNOD_INLINE __m512i start(const Chunk256& /*x*/, int /*g*/) { return _mm512_setzero_si512(); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& x) { return x.pair16; }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    __m512i sc[4];
    pf.template next<320>();
    tr16(r.p, r.stride, sc);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i mins = high_nibbles(sc[i]);
      out.m[2 * i] = even_bytes(mins);
      out.m[2 * i + 1] = odd_bytes(mins);
      sc[i] = low_nibbles(sc[i]);
    }
    const __m512i dd = dword_at<Block, 80>(r);
    out.d = f16_low(dd);
    out.dmin = f16_high(dd);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        __m512i v[4];
        pf.template next<256>();
        tr16(r.p + 16 + 32 * n + 16 * u, r.stride, v);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const int g = 8 * n + 2 * t + u;
          // The scale as int16, twice: codes * scale <= 45, so the two bytes of a word do not meet.
          const auto pick = static_cast<int>(0x80008000U | static_cast<uint32_t>(g % 4) * 0x00010001U);
          const __m512i scale =
              _mm512_shuffle_epi8(sc[g / 4], _mm512_add_epi32(_mm512_set1_epi32(pick), quads()));
          __m512i w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m512i shifted = t == 0 ? v[i] : _mm512_srli_epi32(v[i], static_cast<unsigned>(2 * t));
            w[i] = _mm512_mullo_epi16(_mm512_and_si512(shifted, bytes_of(3)), scale);
          }
          emit(g, w, scale);
        }
      }
    }
  }

  // For one row the codes stay where they are in their bytes (1, 4, 16 or 64 times too large: still
  // unsigned bytes) and scales meet pairs of group sums: a third fewer instructions than folding.
  // sum[m] += scaled sums of the block.
  template <int M, typename P>
  SYNOD_INLINE void scaled_sums(const Rows16& r, Header& out, P& pf, const Chunk256* const (&x)[M],
                                __m512i (&sum)[M]) {
    __m512i sc[4];
    pf.template next<320>();
    tr16(r.p, r.stride, sc);
    const __m512i nibbles = _mm512_set1_epi32(0x000f000f);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      out.m[2 * i] = _mm512_and_si512(_mm512_srli_epi32(sc[i], 4), nibbles);
      out.m[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi32(sc[i], 12), nibbles);
    }
    const __m512i dd = dword_at<Block, 80>(r);
    out.d = f16_low(dd);
    out.dmin = f16_high(dd);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        __m512i v[4];
        pf.template next<256>();
        tr16(r.p + 16 + 32 * n + 16 * u, r.stride, v);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; ++pair) {
          __m512i a[2][M];
#pragma GCC unroll 2
          for (int h = 0; h < 2; ++h) {
            const int t = 2 * pair + h;
            __m512i w[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) w[i] = _mm512_and_si512(v[i], bytes_of(3 << (2 * t)));
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) a[h][m] = _mm512_setzero_si512();
            dots(w, x, 16 * (8 * n + 2 * t + u), a[h]);
          }
          const __m512i word = sc[2 * n + pair];
          const __m512i scales = _mm512_and_si512(u == 0 ? word : _mm512_srli_epi32(word, 8), nibbles);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) {
            // |sum of 16 codes| <= 16 * 3 * 127 = 6096. Exact shifts: a[0] is 1 or 16 times, a[1] 4 or 64
            // times.
            const __m512i low = pair == 0 ? a[0][m] : _mm512_srai_epi32(a[0][m], 4);
            const __m512i high = _mm512_slli_epi32(a[1][m], pair == 0 ? 14 : 10);
            sum[m] = _mm512_dpwssd_epi32(sum[m], _mm512_mask_mov_epi16(low, 0xaaaaaaaaU, high), scales);
          }
        }
      }
    }
  }

  // First byte of the dword, in the even bytes, of each dword of a 128-bit lane.
  SYNOD_INLINE __m512i quads() { return _mm512_set4_epi32(0x000c000c, 0x00080008, 0x00040004, 0); }
};

struct Q3_K {
  using Block = BlockQ3_K;
  static constexpr Scaling kScaling = Scaling::kMultiply;
  static constexpr int kGroup = 16;
  static constexpr int kMinPairs = 0;
  static constexpr int kTileFrom = 7;
  static constexpr int kTileTokens = 4;
  // Codes are 0..7 for -4..3.
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return _mm512_srai_epi32(broadcast(x.n32 + g), 3); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }

  // Bit `from` of every byte as bit 2.
  SYNOD_INLINE __m512i third_bit(__m512i v, int from) {
    return from < 2 ? _mm512_slli_epi32(v, static_cast<unsigned>(2 - from))
                    : _mm512_srli_epi32(v, static_cast<unsigned>(from - 2));
  }

  // The six-bit scales as bytes, from the block's last 16 bytes: 2 of q, 12 of scales, d.
  SYNOD_INLINE void scale_bytes(const __m512i (&end)[4], __m512i (&sc)[4]) {
    __m512i s[3];
#pragma GCC unroll 3
    for (int i = 0; i < 3; ++i) {
      s[i] = _mm512_or_si512(_mm512_srli_epi32(end[i], 16), _mm512_slli_epi32(end[i + 1], 16));
    }
    const __m512i two = bytes_of(0x30);
    sc[0] = _mm512_or_si512(low_nibbles(s[0]), _mm512_and_si512(_mm512_slli_epi32(s[2], 4), two));
    sc[1] = _mm512_or_si512(low_nibbles(s[1]), _mm512_and_si512(_mm512_slli_epi32(s[2], 2), two));
    sc[2] = _mm512_or_si512(high_nibbles(s[0]), _mm512_and_si512(s[2], two));
    sc[3] = _mm512_or_si512(high_nibbles(s[1]), _mm512_and_si512(_mm512_srli_epi32(s[2], 2), two));
  }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    __m512i end[4];
    __m512i sc[4];
    __m512i high[8];
    pf.template next<736>();
    tr16(r.p + 94, r.stride, end);
    scale_bytes(end, sc);
    out.d = f16_high(end[3]);
    tr16(r.p, r.stride, high);
    tr16(r.p + 16, r.stride, high + 4);
#pragma GCC unroll 2
    for (int n = 0; n < 2; ++n) {
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        __m512i v[4];
        pf.template next<256>();
        tr16(r.p + 32 + 32 * n + 16 * u, r.stride, v);
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          __m512i w[4];
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const __m512i shifted = _mm512_srli_epi32(v[i], static_cast<unsigned>(2 * t));
            const __m512i low = _mm512_and_si512(shifted, bytes_of(3));
            // low | (bit & 4)
            w[i] = _mm512_ternarylogic_epi32(low, third_bit(high[4 * u + i], 4 * n + t), bytes_of(4), 0xf8);
          }
          const int g = 8 * n + 2 * t + u;
          emit(g, w, _mm512_sub_epi32(unsigned_byte(sc[g / 4], g % 4), _mm512_set1_epi32(32)));
        }
      }
    }
  }
};

struct IQ4_XS {
  using Block = BlockIQ4_XS;
  static constexpr Scaling kScaling = Scaling::kMultiply;
  static constexpr int kGroup = 32;
  static constexpr int kMinPairs = 0;
  static constexpr int kTileFrom = 7;
  static constexpr int kTileTokens = 4;
  // Codes are level + 128.
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return _mm512_slli_epi32(broadcast(x.n8 + g), 4); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    const __m512i table = table16(kIq4Values, 128);
    const __m512i first = dword_at<Block, 0>(r);  // d, two high bits per scale
    const __m512i low = dword_at<Block, 4>(r);
    const __m512i high = _mm512_srli_epi32(first, 16);
    out.d = f16_low(first);
    pf.template next<128>();
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      __m512i w[8];
      pf.template next<256>();
      nibbles32(r.p + 8 + 16 * g, r.stride, w);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) w[i] = look_up(table, w[i]);
      const __m512i four = _mm512_srli_epi32(low, static_cast<unsigned>(4 * g));
      const __m512i two = _mm512_srli_epi32(high, static_cast<unsigned>(2 * g));
      const __m512i scale =
          _mm512_or_si512(_mm512_and_si512(four, _mm512_set1_epi32(15)),
                          _mm512_slli_epi32(_mm512_and_si512(two, _mm512_set1_epi32(3)), 4));
      emit(g, w, _mm512_sub_epi32(scale, _mm512_set1_epi32(32)));
    }
  }
};

// Ternary types: codes 0..2 under one scale; `first_sum` takes the 1 off every code.
struct TQ2_0 {
  using Block = BlockTQ2_0;
  static constexpr Scaling kScaling = Scaling::kFolded;
  static constexpr int kGroup = 16;
  static constexpr int kMinPairs = 0;
  static constexpr int kTileFrom = 5;
  static constexpr int kTileTokens = 8;
  SYNOD_INLINE __m512i start(const Chunk256& /*x*/, int /*g*/) { return _mm512_setzero_si512(); }
  SYNOD_INLINE __m512i first_sum(const Chunk256& x) { return broadcast(&x.n1); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    pf.template next<32>();
    out.d = f16_high(dword_at<Block, 62>(r));  // d ends the block: a dword at 64 would pass it
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 16 * c, r.stride, v);
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        __m512i w[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          w[i] = _mm512_and_si512(_mm512_srli_epi32(v[i], static_cast<unsigned>(2 * t)), bytes_of(3));
        }
        emit(8 * (c / 2) + 2 * t + c % 2, w, w[0]);
      }
    }
  }
};

struct TQ1_0 {
  using Block = BlockTQ1_0;
  static constexpr Scaling kScaling = Scaling::kFolded;
  static constexpr int kGroup = 16;
  static constexpr int kMinPairs = 0;
  static constexpr int kTileFrom = 5;
  static constexpr int kTileTokens = 8;
  SYNOD_INLINE __m512i start(const Chunk256& /*x*/, int /*g*/) { return _mm512_setzero_si512(); }
  SYNOD_INLINE __m512i first_sum(const Chunk256& x) { return broadcast(&x.n1); }
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }

  // First base-3 digit of a fraction of 256: 3 v >> 8, which steps at 86 and at 171.
  SYNOD_INLINE __m512i digit(__m512i v) {
    const __mmask64 one = _mm512_cmpge_epu8_mask(v, bytes_of(86));
    const __mmask64 two = _mm512_cmpge_epu8_mask(v, bytes_of(171));
    const __m512i ones = _mm512_maskz_mov_epi8(one, bytes_of(1));
    return _mm512_mask_mov_epi8(ones, two, bytes_of(2));
  }
  SYNOD_INLINE __m512i times3(__m512i v) { return _mm512_add_epi8(v, _mm512_add_epi8(v, v)); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    pf.template next<96>();
    out.d = f16_high(dword_at<Block, 50>(r));  // d ends the block
    __m512i w[4];
#pragma GCC unroll 3
    for (int c = 0; c < 3; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 16 * c, r.stride, v);
#pragma GCC unroll 5
      for (int t = 0; t < 5; ++t) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          w[i] = digit(v[i]);
          v[i] = times3(v[i]);
        }
        emit(c < 2 ? 2 * t + c : 10 + t, w, w[0]);
      }
    }
    __m512i last = dword_at<Block, 48>(r);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      w[i] = digit(last);
      last = times3(last);
    }
    emit(15, w, w[0]);
  }
};
