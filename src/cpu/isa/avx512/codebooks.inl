// Codebook types (IQ1, IQ2, IQ3). An entry is looked up as small codes, several to a byte; one vpermb turns
// code and sign of a coordinate into an unsigned weight, bias + signed value; the accumulator starts at
// -bias * (sum of activations). Activations are stored transposed (kBlocks256By8, By4), so a dword of codes
// that belongs to four entries needs no shuffle: a coordinate's two bits stay where they are, and the table
// is replicated over the bits that do not belong to it.
//
// Index of one coordinate = its field of the codes | everything else from the sign byte:
//   field f of codes: bits 2f, 2f + 1; field 3 is read at bits 4, 5 after a shift by 2
//   vpermb ignores bits 6 and 7
// By8, half 0: coordinates 0-3 in fields 1 2 0 3, their signs at bits 0-3 of the sign byte
//      half 1: coordinates 4-7 in fields 3 2 0 1, signs at bits 2-5 of the sign byte shifted by 2
// By4, both halves as half 0 of By8.

// 64-entry table: weight of code c and sign s for the index that has c at bit `kCodeBit`, s at bit
// `kSignBit`. kHighBit >= 0: bit 2 of the code.
struct alignas(64) Values64 {
  uint8_t v[64];
};

template <size_t kLevels>
constexpr Values64 values64(const int (&levels)[kLevels], int bias, int code_bit, int sign_bit,
                            int high_bit = -1) {
  Values64 t{};
  for (int i = 0; i < 64; ++i) {
    int code = i >> code_bit & 3;
    if (high_bit >= 0) code |= (i >> high_bit & 1) << 2;
    const int level = code < static_cast<int>(kLevels) ? levels[code] : 0;  // codes past the last never occur
    t.v[i] = static_cast<uint8_t>((i >> sign_bit & 1) != 0 ? bias - level : bias + level);
  }
  return t;
}

SYNOD_INLINE __m512i weights(const Values64& table, int code_mask, __m512i codes, __m512i signs) {
  // The coordinate's bits from `codes`, the others from `signs`.
  const __m512i index = _mm512_ternarylogic_epi32(bytes_of(code_mask), codes, signs, 0xca);
  return _mm512_permutexvar_epi8(index, _mm512_load_si512(table.v));
}

// Which entries of a byte table the bits 6 and 7 of their indices choose.
struct Quarters {
  __mmask64 one, two, three;
};
SYNOD_INLINE Quarters quarters(__m512i index) {
  const __mmask64 bit6 = _mm512_movepi8_mask(_mm512_add_epi8(index, index));
  const __mmask64 bit7 = _mm512_movepi8_mask(index);
  return {bit6, bit7, _kand_mask64(bit6, bit7)};
}

// Entry of a 256-byte table for every byte of `index`.
SYNOD_INLINE __m512i look_up256(const uint8_t* table, __m512i index, const Quarters& q) {
  __m512i r = _mm512_permutexvar_epi8(index, _mm512_load_si512(table));
  r = _mm512_mask_permutexvar_epi8(r, q.one, index, _mm512_load_si512(table + 64));
  r = _mm512_mask_permutexvar_epi8(r, q.two, index, _mm512_load_si512(table + 128));
  return _mm512_mask_permutexvar_epi8(r, q.three, index, _mm512_load_si512(table + 192));
}

SYNOD_INLINE __m512i look_up512(const uint8_t* table, __m512i index, const Quarters& q, __mmask64 bit8) {
  const __m512i low = look_up256(table, index, q);
  return _mm512_mask_mov_epi8(low, bit8, look_up256(table + 256, index, q));
}

// Byte j of each dword takes the 8 bits from bit b_j of its dword (wrapping in the qword).
SYNOD_INLINE __m512i multishift(__m512i v, int b0, int b1, int b2, int b3) {
  uint64_t control = 0;
  const int bits[4] = {b0, b1, b2, b3};
  for (int j = 0; j < 8; ++j) {
    const int bit = 32 * (j / 4) + bits[j % 4];
    control |= static_cast<uint64_t>(bit & 63) << (8 * j);
  }
  return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<int64_t>(control)), v);
}
SYNOD_INLINE __m512i multishift_by(__m512i v, int first, int step) {
  return multishift(v, first, first + step, first + 2 * step, first + 3 * step);
}

// Eight sign bits from seven: bit 7 makes their number even. Row of result bit i is byte 7 - i.
SYNOD_INLINE __m512i even_signs(__m512i v) {
  return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(0x01020408'1020407fLL), 0);
}
// The same from bits 1-7.
SYNOD_INLINE __m512i even_signs_above(__m512i v) {
  return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(0x02040810'204080feLL), 0);
}

// Bytes 0 and 2 of `a` with bytes 0 and 2 of `b` in their odd places; and the same of bytes 1 and 3.
SYNOD_INLINE __m512i zip_even(__m512i a, __m512i b) {
  return _mm512_mask_mov_epi8(a, 0xaaaaaaaaaaaaaaaaULL, _mm512_slli_epi32(b, 8));
}
SYNOD_INLINE __m512i zip_odd(__m512i a, __m512i b) {
  return _mm512_mask_mov_epi8(_mm512_srli_epi32(a, 8), 0xaaaaaaaaaaaaaaaaULL, b);
}

// 2 s + 1 where s is the `bits`-wide field from bit `first` of each dword.
SYNOD_INLINE __m512i odd_scale(__m512i v, int first, int bits) {
  const __m512i doubled = first == 0   ? _mm512_slli_epi32(v, 1)
                          : first == 1 ? v
                                       : _mm512_srli_epi32(v, static_cast<unsigned>(first - 1));
  const __m512i field = _mm512_set1_epi32(((1 << bits) - 1) * 2);
  return _mm512_ternarylogic_epi32(doubled, field, _mm512_set1_epi32(1), 0xea);  // (doubled & field) | 1
}

// What the codebook types share: scales are multiplied, there are no mins.
struct Codebook {
  static constexpr Scaling kScaling = Scaling::kMultiply;
  static constexpr int kMinPairs = 0;
  static constexpr int kTileFrom = 7;
  static constexpr int kTileTokens = 4;
  SYNOD_INLINE const int32_t* min_sums(const Chunk256& /*x*/) { return nullptr; }
};

inline constexpr int kIq2Levels[3] = {8, 25, 43};
inline constexpr int kIq2Bias = 64;
inline constexpr int kIq3XxsLevels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr int kIq3SLevels[8] = {1, 3, 5, 7, 9, 11, 13, 15};

// Tables of the index forms above, by (bit of the code, bit of the sign).
alignas(64) constexpr Values64 kIq2At20 = values64(kIq2Levels, kIq2Bias, 2, 0);
alignas(64) constexpr Values64 kIq2At41 = values64(kIq2Levels, kIq2Bias, 4, 1);
alignas(64) constexpr Values64 kIq2At02 = values64(kIq2Levels, kIq2Bias, 0, 2);
alignas(64) constexpr Values64 kIq2At43 = values64(kIq2Levels, kIq2Bias, 4, 3);
alignas(64) constexpr Values64 kIq2At42 = values64(kIq2Levels, kIq2Bias, 4, 2);
alignas(64) constexpr Values64 kIq2At04 = values64(kIq2Levels, kIq2Bias, 0, 4);
alignas(64) constexpr Values64 kIq2At25 = values64(kIq2Levels, kIq2Bias, 2, 5);

// Half 0 of By8, both halves of By4: w[j] = coordinate j of four entries.
SYNOD_INLINE void iq2_weights(__m512i codes, __m512i signs, __m512i* w) {
  w[0] = weights(kIq2At20, 0x0c, codes, signs);
  w[1] = weights(kIq2At41, 0x30, codes, signs);
  w[2] = weights(kIq2At02, 0x03, codes, signs);
  w[3] = weights(kIq2At43, 0x30, _mm512_srli_epi32(codes, 2), signs);
}

struct IQ2_XXS : Codebook {
  using Block = BlockIQ2_XXS;
  static constexpr int kGroup = 32;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return _mm512_slli_epi32(broadcast(x.n8 + g), 3); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    out.d = _mm512_mul_ps(f16_low(dword_at<Block, 0>(r)), _mm512_set1_ps(0.125F));
    pf.template next<32>();
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 2 + 16 * c, r.stride, v);
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        const Quarters q = quarters(v[2 * u]);
        const __m512i low = look_up256(kCodebookCodes.iq2_xxs[0], v[2 * u], q);
        const __m512i high = look_up256(kCodebookCodes.iq2_xxs[1], v[2 * u], q);
        const __m512i word = v[2 * u + 1];
        const __m512i signs = even_signs(multishift_by(word, 0, 7));
        const __m512i signs2 = _mm512_srli_epi32(signs, 2);
        __m512i w[8];
        iq2_weights(low, signs, w);
        w[4] = weights(kIq2At42, 0x30, _mm512_srli_epi32(high, 2), signs2);
        w[5] = weights(kIq2At43, 0x30, high, signs2);
        w[6] = weights(kIq2At04, 0x03, high, signs2);
        w[7] = weights(kIq2At25, 0x0c, high, signs2);
        emit(2 * c + u, w, _mm512_or_si512(_mm512_srli_epi32(word, 27), _mm512_set1_epi32(1)));
      }
    }
  }
};

struct IQ2_XS : Codebook {
  using Block = BlockIQ2_XS;
  static constexpr int kGroup = 16;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return _mm512_slli_epi32(broadcast(x.n32 + g), 1); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    out.d = _mm512_mul_ps(f16_low(dword_at<Block, 0>(r)), _mm512_set1_ps(0.125F));
    __m512i end[4];
    pf.template next<160>();
    tr16(r.p + 58, r.stride, end);  // scales are its last 8 bytes
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 2 + 16 * c, r.stride, v);
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        // Two entries of 16 bits (9 of index, 7 of signs) in a dword; a and b are groups of 16 values.
        const __m512i a = v[2 * u];
        const __m512i b = v[2 * u + 1];
        const __m512i index = zip_even(a, b);  // a0 b0 a1 b1
        const __m512i above = zip_odd(a, b);
        const Quarters q = quarters(index);
        const __mmask64 bit8 = _mm512_movepi8_mask(_mm512_slli_epi32(above, 7));
        const __m512i low = look_up512(kCodebookCodes.iq2_xs[0], index, q, bit8);
        const __m512i high = look_up512(kCodebookCodes.iq2_xs[1], index, q, bit8);
        const __m512i signs = even_signs_above(above);
        const int g = 4 * c + 2 * u;
        __m512i w[4];
        iq2_weights(zip_even(low, high), multishift(signs, 0, 4, 16, 20), w);
        emit(g, w, odd_scale(end[2 + g / 8], 4 * (g % 8), 4));
        iq2_weights(zip_odd(low, high), multishift(signs, 8, 12, 24, 28), w);
        emit(g + 1, w, odd_scale(end[2 + g / 8], 4 * (g % 8) + 4, 4));
      }
    }
  }
};

struct IQ2_S : Codebook {
  using Block = BlockIQ2_S;
  static constexpr int kGroup = 16;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return IQ2_XS::start(x, g); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    out.d = _mm512_mul_ps(f16_low(dword_at<Block, 0>(r)), _mm512_set1_ps(0.125F));
    __m512i end[4];  // high index bits, scales
    pf.template next<288>();
    tr16(r.p + 66, r.stride, end);
    // Entries 0 2 1 3: then a group of 16 values is made of neighbouring bytes of both tables.
    const __m512i order = _mm512_set4_epi32(0x0f0d0e0c, 0x0b090a08, 0x07050604, 0x03010200);
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      __m512i v[4];
      __m512i s[4];
      pf.template next<512>();
      tr16(r.p + 2 + 16 * c, r.stride, v);
      tr16(r.p + 34 + 16 * c, r.stride, s);
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const int k = 4 * c + u;
        const __m512i index = _mm512_shuffle_epi8(v[u], order);
        const Quarters q = quarters(index);
        // Bits 8 and 9 of the index at bits 6 and 7.
        const int first = 8 * (k % 4) - 6;
        const __m512i upper = multishift(end[k / 4], first, first + 4, first + 2, first + 6);
        const __mmask64 bit8 = _mm512_movepi8_mask(_mm512_add_epi8(upper, upper));
        const __mmask64 bit9 = _mm512_movepi8_mask(upper);
        const auto look_up = [&](const uint8_t* table) __attribute__((always_inline)) {
          const __m512i below = look_up512(table, index, q, bit8);
          return _mm512_mask_mov_epi8(below, bit9, look_up512(table + 512, index, q, bit8));
        };
        const __m512i low = look_up(kCodebookCodes.iq2_s[0]);
        const __m512i high = look_up(kCodebookCodes.iq2_s[1]);
        const int g = 2 * k;
        __m512i w[4];
        iq2_weights(zip_even(low, high), multishift(s[u], 0, 4, 8, 12), w);
        emit(g, w, odd_scale(end[2 + g / 8], 4 * (g % 8), 4));
        iq2_weights(zip_odd(low, high), multishift(s[u], 16, 20, 24, 28), w);
        emit(g + 1, w, odd_scale(end[2 + g / 8], 4 * (g % 8) + 4, 4));
      }
    }
  }
};

// Entries of 4 coordinates: signs at bits 2-5, high bits of the codes at 0, 1, 6, 7 of the same byte.
template <const int (&kLevels)[8], int kBias>
struct Iq3Values {
  static constexpr Values64 k0 = values64(kLevels, kBias, 4, 2, 0);
  static constexpr Values64 k1 = values64(kLevels, kBias, 4, 3, 1);
  static constexpr Values64 k2 = values64(kLevels, kBias, 0, 2, 4);
  static constexpr Values64 k3 = values64(kLevels, kBias, 0, 3, 5);

  // w[j] = coordinate j of four entries; `signs` as they are, at bits 2-5.
  SYNOD_INLINE void weights4(__m512i low, __m512i high, __m512i signs, __m512i* w) {
    const __m512i rest = _mm512_ternarylogic_epi32(bytes_of(0x3c), signs, high, 0xca);
    const __m512i low2 = _mm512_srli_epi32(low, 2);
    const __m512i rest2 = _mm512_srli_epi32(rest, 2);
    w[0] = weights(k0, 0x30, low, rest);
    w[1] = weights(k1, 0x30, low2, rest);
    w[2] = weights(k2, 0x03, low, rest2);
    w[3] = weights(k3, 0x03, low2, rest2);
  }
};

struct IQ3_XXS : Codebook {
  using Block = BlockIQ3_XXS;
  using Values = Iq3Values<kIq3XxsLevels, 64>;
  static constexpr int kGroup = 32;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return IQ2_XXS::start(x, g); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    out.d = _mm512_mul_ps(f16_low(dword_at<Block, 0>(r)), _mm512_set1_ps(0.25F));
    pf.template next<32>();
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      __m512i words[4];
      pf.template next<256>();
      tr16(r.p + 66 + 16 * c, r.stride, words);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        __m512i v[4];
        pf.template next<256>();
        tr16(r.p + 2 + 32 * c + 16 * h, r.stride, v);
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
          const __m512i word = words[2 * h + u];
          const __m512i signs = even_signs(multishift_by(word, 0, 7));
          __m512i w[8];
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            const __m512i index = v[2 * u + half];
            const Quarters q = quarters(index);
            Values::weights4(look_up256(kCodebookCodes.iq3_xxs[0], index, q),
                             look_up256(kCodebookCodes.iq3_xxs[1], index, q),
                             multishift_by(signs, 16 * half - 2, 4), w + 4 * half);
          }
          emit(4 * c + 2 * h + u, w, _mm512_or_si512(_mm512_srli_epi32(word, 27), _mm512_set1_epi32(1)));
        }
      }
    }
  }
};

struct IQ3_S : Codebook {
  using Block = BlockIQ3_S;
  using Values = Iq3Values<kIq3SLevels, 16>;
  static constexpr int kGroup = 32;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return _mm512_slli_epi32(broadcast(x.n8 + g), 1); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    out.d = f16_low(dword_at<Block, 0>(r));
    __m512i tail[12];  // bytes 66-81, 82-97, 94-109: high index bits, signs, scales
    pf.template next<736>();
    tr16(r.p + 66, r.stride, tail);
    tr16(r.p + 82, r.stride, tail + 4);
    tr16(r.p + 94, r.stride, tail + 8);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 2 + 16 * c, r.stride, v);
#pragma GCC unroll 2
      for (int u = 0; u < 2; ++u) {
        const int k = 2 * c + u;
        const __m512i signs = tail[k < 6 ? 2 + k : 3 + k];
        __m512i w[8];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const __m512i index = v[2 * u + half];
          const Quarters q = quarters(index);
          const __mmask64 bit8 =
              _mm512_movepi8_mask(multishift_by(tail[k / 4], 8 * (k % 4) + 4 * half - 7, 1));
          Values::weights4(look_up512(kCodebookCodes.iq3_s[0], index, q, bit8),
                           look_up512(kCodebookCodes.iq3_s[1], index, q, bit8),
                           multishift_by(signs, 16 * half - 2, 4), w + 4 * half);
        }
        emit(k, w, odd_scale(tail[11], 4 * k, 4));
      }
    }
  }
};

// IQ1: the codebook has 2048 entries, too many for registers: gathered as words of eight 2-bit codes.
// Weights are 16 + 8 coordinate +- 1.
constexpr Values64 iq1_values(int code_bit, int delta_bit) {
  Values64 t{};
  for (int i = 0; i < 64; ++i) {
    const int coordinate = (i >> code_bit & 3) - 1;
    t.v[i] = static_cast<uint8_t>(16 + 8 * coordinate + ((i >> delta_bit & 1) != 0 ? -1 : 1));
  }
  return t;
}

struct Iq1Values {
  static constexpr Values64 kAt20 = iq1_values(2, 0);
  static constexpr Values64 kAt42 = iq1_values(4, 2);
  static constexpr Values64 kAt02 = iq1_values(0, 2);

  // Codes of two entries, as words, and the signs of their shifts at bit 2 of every byte.
  SYNOD_INLINE void weights4(__m512i first, __m512i second, __m512i delta, __m512i* w) {
    const auto* words = kCodebookCodes.iq1;
    const __m512i low = _mm512_i32gather_epi32(first, words + 1, 2);
    const __m512i high = _mm512_i32gather_epi32(second, words, 2);
    const __m512i codes = _mm512_mask_mov_epi16(low, 0xaaaaaaaaU, high);
    w[0] = weights(kAt20, 0x0c, codes, _mm512_srli_epi32(delta, 2));
    w[1] = weights(kAt42, 0x30, codes, delta);
    w[2] = weights(kAt02, 0x03, codes, delta);
    w[3] = weights(kAt42, 0x30, _mm512_srli_epi32(codes, 2), delta);
  }

  // Byte `e` of `low` below, the three bits of `high` from bit `first` on above.
  SYNOD_INLINE __m512i index(__m512i low, int e, __m512i high, int first) {
    const __m512i byte = e == 0 ? low : _mm512_srli_epi32(low, static_cast<unsigned>(8 * e));
    const __m512i bits = first < 8 ? _mm512_slli_epi32(high, static_cast<unsigned>(8 - first))
                                   : _mm512_srli_epi32(high, static_cast<unsigned>(first - 8));
    // (bits & 0x700) | (byte & 0xff)
    const __m512i upper = _mm512_and_si512(bits, _mm512_set1_epi32(0x700));
    return _mm512_ternarylogic_epi32(upper, byte, _mm512_set1_epi32(0xff), 0xf8);
  }
};

struct IQ1_S : Codebook {
  using Block = BlockIQ1_S;
  static constexpr int kGroup = 32;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return IQ3_S::start(x, g); }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    out.d = _mm512_mul_ps(f16_low(dword_at<Block, 0>(r)), _mm512_set1_ps(0.125F));
    __m512i h[4];
    pf.template next<288>();
    tr16(r.p + 34, r.stride, h);
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 2 + 16 * c, r.stride, v);
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        const int k = 4 * c + u;
        const int bit = 16 * (k % 2);
        const __m512i word = h[k / 2];
        const __m512i delta = _mm512_srai_epi32(k % 2 == 0 ? _mm512_slli_epi32(word, 16) : word, 31);
        __m512i w[8];
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const int e = 2 * half;
          Iq1Values::weights4(Iq1Values::index(v[u], e, word, bit + 3 * e),
                              Iq1Values::index(v[u], e + 1, word, bit + 3 * e + 3), delta, w + 4 * half);
        }
        emit(k, w, odd_scale(word, bit + 12, 3));
      }
    }
  }
};

struct IQ1_M : Codebook {
  using Block = BlockIQ1_M;
  static constexpr int kGroup = 16;
  SYNOD_INLINE __m512i start(const Chunk256& x, int g) { return _mm512_srai_epi32(broadcast(x.n32 + g), 1); }

  SYNOD_INLINE __m512i nibble(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi32(mask)); }
  // f16 bits from the top nibbles of four words.
  SYNOD_INLINE __m512i d_bits(__m512i a, __m512i b) {
    const __m512i low =
        _mm512_or_si512(nibble(_mm512_srli_epi32(a, 12), 0xf), nibble(_mm512_srli_epi32(a, 24), 0xf0));
    const __m512i high =
        _mm512_or_si512(nibble(_mm512_srli_epi32(b, 4), 0xf00), nibble(_mm512_srli_epi32(b, 16), 0xf000));
    return _mm512_or_si512(low, high);
  }

  template <typename P, typename Emit>
  SYNOD_INLINE void unpack(const Rows16& r, Header& out, P& pf, Emit emit) {
    __m512i h[4];
    __m512i end[4];  // scales are its last 8 bytes
    pf.template next<384>();
    tr16(r.p + 32, r.stride, h);
    tr16(r.p + 40, r.stride, end);
    out.d = _mm512_mul_ps(f16_low(d_bits(end[2], end[3])), _mm512_set1_ps(0.125F));
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      __m512i v[4];
      pf.template next<256>();
      tr16(r.p + 16 * c, r.stride, v);
#pragma GCC unroll 8
      for (int u = 0; u < 8; ++u) {
        const int g = 8 * c + u;  // entries 2g, 2g + 1
        const __m512i nibbles = h[g / 4];
        const int bit = 8 * (g % 4);
        const __m512i delta = multishift(nibbles, bit + 1, bit + 1, bit + 5, bit + 5);  // bit 3 at bit 2
        __m512i w[4];
        Iq1Values::weights4(Iq1Values::index(v[u / 2], 2 * (u % 2), nibbles, bit),
                            Iq1Values::index(v[u / 2], 2 * (u % 2) + 1, nibbles, bit + 4), delta, w);
        emit(g, w, odd_scale(end[2 + g / 8], 16 * (g / 4 % 2) + 3 * (g % 4), 3));
      }
    }
  }
};
