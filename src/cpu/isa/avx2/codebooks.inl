// Codebook and ternary types. A register holds no codebook here, so each row's block is expanded to 256
// signed bytes first, entry by entry, in the order of its activations; from there on rows are lanes again.

// One block of one row, expanded. Scales are int16 twice in a dword.
struct Expanded {
  alignas(32) int8_t code[256];
  int32_t scale[16];
  float d;
};

SYNOD_INLINE int32_t scale_pair(uint32_t code) { return static_cast<int32_t>((2 * code + 1) * 0x00010001U); }

SYNOD_INLINE uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
SYNOD_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

SYNOD_INLINE float f16_value(uint16_t bits) { return _cvtsh_ss(bits); }

// Eight sign bits from seven: bit 7 makes their number even.
SYNOD_INLINE uint32_t even_signs(uint32_t seven) {
  return seven | (static_cast<uint32_t>(__builtin_parity(seven)) << 7);
}

// Codes j with bit j of `signs` negated; `entries`: 32 coordinates.
SYNOD_INLINE __m256i with_signs(__m256i entries, uint32_t signs) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i pick = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ULL));
  const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(signs)), spread);
  const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(bits, pick), pick);
  return _mm256_sub_epi8(_mm256_xor_si256(entries, negative), negative);
}

SYNOD_INLINE __m256i four_entries(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  return _mm256_setr_epi64x(static_cast<int64_t>(a), static_cast<int64_t>(b), static_cast<int64_t>(c),
                            static_cast<int64_t>(d));
}

SYNOD_INLINE uint64_t two_entries(uint32_t a, uint32_t b) { return static_cast<uint64_t>(b) << 32 | a; }

SYNOD_INLINE void store32(Expanded& out, int k, __m256i codes) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(out.code + 32 * k), codes);
}

struct Codebook : Super {
  static constexpr bool kSigned = true;
  static constexpr int kGroup = 16;
};

struct IQ2_XXS : Codebook {
  using Block = BlockIQ2_XXS;
  static constexpr int kMax = 43;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint64_t* grid = kCodebooks.iq2_xxs;
    out.d = f16_value(load_u16(p)) * 0.125F;
    for (int k = 0; k < 8; ++k) {
      const uint8_t* q = p + 2 + 8 * k;
      const uint32_t word = load_u32(q + 4);
      uint32_t signs = 0;
      for (int l = 0; l < 4; ++l) signs |= even_signs(word >> (7 * l) & 127U) << (8 * l);
      store32(out, k, by8(with_signs(four_entries(grid[q[0]], grid[q[1]], grid[q[2]], grid[q[3]]), signs)));
      out.scale[2 * k] = out.scale[2 * k + 1] = scale_pair(word >> 28);
    }
  }
};

struct IQ2_XS : Codebook {
  using Block = BlockIQ2_XS;
  static constexpr int kMax = 43;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint64_t* grid = kCodebooks.iq2_xs;
    out.d = f16_value(load_u16(p)) * 0.125F;
    for (int k = 0; k < 8; ++k) {
      uint32_t signs = 0;
      uint32_t q[4];
      for (int l = 0; l < 4; ++l) {
        q[l] = load_u16(p + 2 + 8 * k + 2 * l);
        signs |= even_signs(q[l] >> 9) << (8 * l);
        q[l] &= 511U;
      }
      store32(out, k, by4(with_signs(four_entries(grid[q[0]], grid[q[1]], grid[q[2]], grid[q[3]]), signs)));
      out.scale[2 * k] = scale_pair(p[66 + k] & 15U);
      out.scale[2 * k + 1] = scale_pair(p[66 + k] >> 4);
    }
  }
};

struct IQ2_S : Codebook {
  using Block = BlockIQ2_S;
  static constexpr int kMax = 43;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint64_t* grid = kCodebooks.iq2_s;
    out.d = f16_value(load_u16(p)) * 0.125F;
    for (int k = 0; k < 8; ++k) {
      const uint8_t* q = p + 2 + 4 * k;
      const uint32_t high = p[66 + k];
      const auto entry = [&](int l) __attribute__((always_inline)) {
        return grid[q[l] | (high >> (2 * l) & 3U) << 8];
      };
      store32(
          out, k,
          by4(with_signs(four_entries(entry(0), entry(1), entry(2), entry(3)), load_u32(p + 34 + 4 * k))));
      out.scale[2 * k] = scale_pair(p[74 + k] & 15U);
      out.scale[2 * k + 1] = scale_pair(p[74 + k] >> 4);
    }
  }
};

struct IQ3_XXS : Codebook {
  using Block = BlockIQ3_XXS;
  static constexpr int kMax = 62;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint32_t* grid = kCodebooks.iq3_xxs;
    out.d = f16_value(load_u16(p)) * 0.25F;
    for (int k = 0; k < 8; ++k) {
      const uint8_t* q = p + 2 + 8 * k;
      const uint32_t word = load_u32(p + 66 + 4 * k);
      uint32_t signs = 0;
      for (int l = 0; l < 4; ++l) signs |= even_signs(word >> (7 * l) & 127U) << (8 * l);
      const auto entry = [&](int l) __attribute__((always_inline)) {
        return two_entries(grid[q[2 * l]], grid[q[2 * l + 1]]);
      };
      store32(out, k, by4(with_signs(four_entries(entry(0), entry(1), entry(2), entry(3)), signs)));
      out.scale[2 * k] = out.scale[2 * k + 1] = scale_pair(word >> 28);
    }
  }
};

struct IQ3_S : Codebook {
  using Block = BlockIQ3_S;
  static constexpr int kMax = 15;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint32_t* grid = kCodebooks.iq3_s;
    out.d = f16_value(load_u16(p));
    for (int k = 0; k < 8; ++k) {
      const uint8_t* q = p + 2 + 8 * k;
      const uint32_t high = p[66 + k];
      const auto entry = [&](int l) __attribute__((always_inline)) {
        return two_entries(grid[q[2 * l] | (high >> (2 * l) & 1U) << 8],
                           grid[q[2 * l + 1] | (high >> (2 * l + 1) & 1U) << 8]);
      };
      store32(
          out, k,
          by4(with_signs(four_entries(entry(0), entry(1), entry(2), entry(3)), load_u32(p + 74 + 4 * k))));
      out.scale[2 * k] = out.scale[2 * k + 1] = scale_pair(p[106 + k / 2] >> (4 * (k % 2)) & 15U);
    }
  }
};

// 8 * coordinate + delta for coordinates of -1, 0, 1.
SYNOD_INLINE __m256i shifted(__m256i entries, __m256i delta) {
  const __m256i eight = _mm256_and_si256(_mm256_slli_epi16(entries, 3), bytes_of(0xf8));
  return _mm256_add_epi8(eight, delta);
}

struct IQ1_S : Codebook {
  using Block = BlockIQ1_S;
  static constexpr int kMax = 9;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint64_t* grid = kCodebooks.iq1;
    out.d = f16_value(load_u16(p)) * 0.125F;
    for (int k = 0; k < 8; ++k) {
      const uint8_t* q = p + 2 + 4 * k;
      const uint32_t high = load_u16(p + 34 + 2 * k);
      const auto entry = [&](int l) __attribute__((always_inline)) {
        return grid[q[l] | (high >> (3 * l) & 7U) << 8];
      };
      const __m256i delta = bytes_of((high >> 15) != 0 ? -1 : 1);
      store32(out, k, by4(shifted(four_entries(entry(0), entry(1), entry(2), entry(3)), delta)));
      out.scale[2 * k] = out.scale[2 * k + 1] = scale_pair(high >> 12 & 7U);
    }
  }
};

struct IQ1_M : Codebook {
  using Block = BlockIQ1_M;
  static constexpr int kMax = 9;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    const uint64_t* grid = kCodebooks.iq1;
    uint16_t scales[4];
    __builtin_memcpy(scales, p + 48, sizeof(scales));
    out.d = f16_value(iq1_m_d(scales)) * 0.125F;
    for (int k = 0; k < 8; ++k) {
      const uint8_t* q = p + 4 * k;
      const uint32_t high = load_u16(p + 32 + 2 * k);  // a nibble per entry
      const auto entry = [&](int l) __attribute__((always_inline)) {
        return grid[q[l] | (high >> (4 * l) & 7U) << 8];
      };
      const auto delta = [&](int l) __attribute__((always_inline)) {
        return (high >> (4 * l + 3) & 1U) != 0 ? 0xffffffffffffffffULL : 0x0101010101010101ULL;
      };
      store32(out, k,
              by4(shifted(four_entries(entry(0), entry(1), entry(2), entry(3)),
                          four_entries(delta(0), delta(1), delta(2), delta(3)))));
      out.scale[2 * k] = scale_pair(scales[k / 2] >> (6 * (k % 2)) & 7U);
      out.scale[2 * k + 1] = scale_pair(scales[k / 2] >> (6 * (k % 2) + 3) & 7U);
    }
  }
};

struct Ternary : Codebook {
  static constexpr int kMax = 1;
  SYNOD_INLINE void set_scales(Expanded& out) {
    for (int32_t& s : out.scale) s = 0x00010001;
  }
};

struct TQ2_0 : Ternary {
  using Block = BlockTQ2_0;
  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    out.d = f16_value(load_u16(p + 64));
    set_scales(out);
    for (int k = 0; k < 8; ++k) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * (k / 4)));
      const __m256i code = _mm256_and_si256(_mm256_srl_epi16(v, _mm_cvtsi32_si128(2 * (k % 4))), bytes_of(3));
      store32(out, k, _mm256_sub_epi8(code, bytes_of(1)));
    }
  }
};

struct TQ1_0 : Ternary {
  using Block = BlockTQ1_0;
  // First base-3 digit of a fraction of 256, less 1: it steps at 86 and at 171.
  SYNOD_INLINE __m256i digit(__m256i v) {
    const __m256i one = _mm256_cmpeq_epi8(_mm256_max_epu8(v, bytes_of(86)), v);
    const __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(v, bytes_of(171)), v);
    // Each comparison is -1 where true.
    return _mm256_sub_epi8(bytes_of(-1), _mm256_add_epi8(one, two));
  }
  SYNOD_INLINE __m256i times3(__m256i v) { return _mm256_add_epi8(v, _mm256_add_epi8(v, v)); }

  SYNOD_INLINE void expand(const uint8_t* p, Expanded& out) {
    out.d = f16_value(load_u16(p + 52));
    set_scales(out);
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    // Bytes 32-47, and the last four in front of what follows them (not read past d).
    __m256i u = _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 32)));
    u = _mm256_inserti128_si256(u, _mm_cvtsi32_si128(static_cast<int>(load_u32(p + 48))), 1);
    for (int t = 0; t < 5; ++t) {
      store32(out, t, digit(v));
      const __m256i digits = digit(u);
      _mm_store_si128(reinterpret_cast<__m128i*>(out.code + 160 + 16 * t), _mm256_castsi256_si128(digits));
      if (t < 4) {
        const int last = _mm_cvtsi128_si32(_mm256_extracti128_si256(digits, 1));
        __builtin_memcpy(out.code + 240 + 4 * t, &last, sizeof(last));
      }
      v = times3(v);
      u = times3(u);
    }
  }
};

// Gives such a type the form of types256.inl.
template <typename T>
struct ByRow : T {
  template <typename Emit>
  SYNOD_INLINE void unpack(const Rows8& r, Header& out, Emit emit) {
    Expanded rows[8];
    alignas(32) float d[8];
    alignas(32) int32_t scales[16][8];
    for (int i = 0; i < 8; ++i) {
      T::expand(r.p + i * r.stride, rows[i]);
      d[i] = rows[i].d;
      for (int g = 0; g < 16; ++g) scales[g][i] = rows[i].scale[g];
    }
    out.d = _mm256_load_ps(d);
#pragma GCC unroll 4
    for (int g = 0; g < 16; ++g) {
      __m256i w[4];
      tr8(reinterpret_cast<const uint8_t*>(rows[0].code) + 16 * g, sizeof(Expanded), w);
      emit(g, w, _mm256_load_si256(reinterpret_cast<const __m256i*>(scales[g])));
    }
  }
};
