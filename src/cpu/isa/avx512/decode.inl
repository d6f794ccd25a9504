// Rows of stored codes with scales to f32, with the arithmetic of decode_row: one product per value, in the
// same order. Codes of four bits and less look their value up in a table that already holds the product.

SYNOD_INLINE uint64_t load_u64(const uint8_t* p) {
  uint64_t v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

// The E2M1 values (doubled for the GGUF block, whose scale is halved) under every scale code: f32 [256][16].
void fp4_table(const Matrix& matrix, std::byte* table) {
  auto* out = reinterpret_cast<float*>(table);
  const bool block = matrix.storage == Storage::kBlock;
  alignas(64) float values[16];
  for (int i = 0; i < 16; ++i) values[i] = block ? static_cast<float>(kE2m1Doubled[i]) : kE2m1Values[i];
  const __m512 e2m1 = _mm512_load_ps(values);
  const __m512 global = _mm512_set1_ps(matrix.global_scale);
  for (int code = 0; code < 256; ++code) {
    __m512 v = _mm512_mul_ps(e2m1, _mm512_set1_ps(fp4_scale(matrix, static_cast<uint8_t>(code))));
    if (matrix.global_scale != 1.0F) {
      v = matrix.global_divides ? _mm512_div_ps(v, global) : _mm512_mul_ps(v, global);
    }
    _mm512_storeu_ps(out + 16 * code, v);
  }
}

// 16 codes of 8 bytes under the scale code `scale`; `order` moves code i to the low bits of dword i.
SYNOD_INLINE void fp4_step(const uint8_t* codes, uint8_t scale, __m512i order, const float* table,
                           float* out) {
  const __m512i bytes = _mm512_set1_epi64(static_cast<int64_t>(load_u64(codes)));
  const __m512i index = _mm512_multishift_epi64_epi8(order, bytes);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(index, _mm512_loadu_ps(table + 16 * scale)));
}

// Code i at bit first(i) of the qword: controls of vpmultishiftqb for 16 dwords.
template <typename First>
SYNOD_INLINE __m512i dword_order(First first) {
  alignas(64) uint32_t control[16];
  for (int i = 0; i < 16; ++i) control[i] = static_cast<uint32_t>(first(i));
  return _mm512_load_si512(control);
}

void fp4_row(const Matrix& matrix, int64_t row, const std::byte* table, float* out) {
  const CodeRow r(matrix, row);
  const auto* values = reinterpret_cast<const float*>(table);
  const __m512i order = dword_order([](int i) { return 4 * i; });
  const int64_t steps = matrix.group / 16;
  for (int64_t k = 0, g = 0; k < matrix.n_in; ++g) {
    const uint8_t scale = r.scales[g];
    for (int64_t s = 0; s < steps && k < matrix.n_in; ++s, k += 16) {
      fp4_step(r.codes + k / 2, scale, order, values, out + k);
    }
  }
}

void nvfp4_block_row(const Matrix& matrix, int64_t row, const std::byte* table, float* out) {
  const CodeRow r(matrix, row);
  const auto* values = reinterpret_cast<const float*>(table);
  const __m512i order = dword_order([](int i) { return 8 * (i % 8) + 4 * (i / 8); });
  const uint8_t* block = r.codes;
  for (int64_t k = 0; k < matrix.n_in; k += 64, block += sizeof(BlockNVFP4)) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) fp4_step(block + 4 + 8 * s, block[s], order, values, out + k + 16 * s);
  }
}

// 32 E4M3 codes as f16 bits: exponents are 8 too small, subnormals come out right.
SYNOD_INLINE __m512i e4m3_as_f16(__m256i codes) {
  const __m512i wide = _mm512_cvtepi8_epi16(codes);
  const __m512i magnitude = _mm512_slli_epi16(wide, 7);
  // (wide & 0x8000) | (magnitude & 0x3f80); the bits of both masks are disjoint.
  return _mm512_ternarylogic_epi32(_mm512_set1_epi16(0x3f80), magnitude,
                                   _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0x8000))),
                                   0xea);
}

void fp8_row(const Matrix& matrix, int64_t row, const std::byte* /*table*/, float* out) {
  const CodeRow r(matrix, row);
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  const __m512 raise = _mm512_set1_ps(256.0F);
  for (int64_t k = 0, g = 0; k < matrix.n_in; ++g) {
    const int64_t end = k + matrix.group < matrix.n_in ? k + matrix.group : matrix.n_in;
    const float factor = r.scale(matrix, g);
    const __m512 scale = _mm512_set1_ps(factor);
    for (; k + 32 <= end; k += 32) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(r.codes + k));
      const __m256i limit = _mm256_set1_epi8(0x7f);
      const __mmask32 bad = _mm256_cmpeq_epi8_mask(_mm256_and_si256(codes, limit), limit);
      const __m512i half = e4m3_as_f16(codes);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m256i bits = h == 0 ? _mm512_castsi512_si256(half) : _mm512_extracti64x4_epi64(half, 1);
        __m512 v = _mm512_mul_ps(_mm512_cvtph_ps(bits), raise);
        v = _mm512_mask_mov_ps(v, static_cast<__mmask16>(bad >> (16 * h)), nan);
        _mm512_storeu_ps(out + k + 16 * h, _mm512_mul_ps(v, scale));
      }
    }
    for (; k < end; ++k) out[k] = kE4m3Values[r.codes[k]] * factor;
  }
}

// 16 codes of kBits from p on: code i in the low bits of dword i, what follows it above. Reads 8 bytes from
// p and from p + kBits on.
template <int kBits>
SYNOD_INLINE __m512i affine_codes(const uint8_t* p, __m512i order) {
  __m512i v = _mm512_set1_epi64(static_cast<int64_t>(load_u64(p)));
  if constexpr (kBits > 4) {
    v = _mm512_mask_set1_epi64(v, 0xf0, static_cast<int64_t>(load_u64(p + kBits)));
  }
  return _mm512_multishift_epi64_epi8(order, v);
}

template <int kBits>
void affine_row(const Matrix& matrix, int64_t row, const std::byte* /*table*/, float* out) {
  const CodeRow r(matrix, row);
  constexpr int kCodeMask = (1 << kBits) - 1;
  const __m512i order = dword_order([](int i) { return kBits * (kBits > 4 ? i % 8 : i); });
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  // A table of 16 (32) values: the bits that are not the code's choose among copies.
  const __m512 low_codes = _mm512_cvtepi32_ps(_mm512_and_si512(lanes, _mm512_set1_epi32(kCodeMask)));
  const __m512 high_codes = _mm512_add_ps(low_codes, _mm512_set1_ps(16.0F));
  // The last step would read past the row: from a copy.
  uint8_t last[2 * kBits + 8] = {};
  const int64_t last_k = matrix.n_in - 16;
  __builtin_memcpy(last, r.codes + last_k / 8 * kBits, 2 * kBits);
  for (int64_t k = 0, g = 0; k < matrix.n_in; ++g) {
    const __m512 scale = _mm512_set1_ps(r.scale(matrix, g));
    const __m512 bias = _mm512_set1_ps(r.bias(matrix, g));
    __m512 low = low_codes;
    __m512 high = high_codes;
    if constexpr (kBits <= 5) {
      low = _mm512_add_ps(_mm512_mul_ps(scale, low), bias);
      high = _mm512_add_ps(_mm512_mul_ps(scale, high), bias);
    }
    const int64_t end = k + matrix.group < matrix.n_in ? k + matrix.group : matrix.n_in;
    for (; k < end; k += 16) {
      // Two codes of 8 bytes each: the step before the last may still pass the row by a few bytes of the
      // last.
      const __m512i codes = affine_codes<kBits>(k == last_k ? last : r.codes + k / 8 * kBits, order);
      __m512 v;
      if constexpr (kBits <= 4) {
        v = _mm512_permutexvar_ps(codes, low);
      } else if constexpr (kBits == 5) {
        v = _mm512_permutex2var_ps(low, codes, high);
      } else {
        const __m512i masked = _mm512_and_si512(codes, _mm512_set1_epi32(kCodeMask));
        v = _mm512_add_ps(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(masked)), bias);
      }
      _mm512_storeu_ps(out + k, v);
    }
  }
}

RowDecoder affine_decoder(int bits) {
  switch (bits) {
    case 2:
      return affine_row<2>;
    case 3:
      return affine_row<3>;
    case 4:
      return affine_row<4>;
    case 5:
      return affine_row<5>;
    case 6:
      return affine_row<6>;
    case 8:
      return affine_row<8>;
    default:
      return nullptr;
  }
}

constexpr Decoders kDecoders = {.fp4_table = fp4_table,
                                .fp4 = fp4_row,
                                .nvfp4_block = nvfp4_block_row,
                                .fp8 = fp8_row,
                                .affine = affine_decoder};
