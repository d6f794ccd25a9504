// Rows of stored codes with scales to f32, with the arithmetic of decode_row: avx512/decode.inl with 8 values
// at a time.

void fp4_table(const Matrix& matrix, std::byte* table) {
  auto* out = reinterpret_cast<float*>(table);
  const bool block = matrix.storage == Storage::kBlock;
  const __m256 global = _mm256_set1_ps(matrix.global_scale);
  alignas(32) float values[16];
  for (int i = 0; i < 16; ++i) values[i] = block ? static_cast<float>(kE2m1Doubled[i]) : kE2m1Values[i];
  for (int code = 0; code < 256; ++code) {
    const __m256 scale = _mm256_set1_ps(fp4_scale(matrix, static_cast<uint8_t>(code)));
    for (int h = 0; h < 2; ++h) {
      __m256 v = _mm256_mul_ps(_mm256_load_ps(values + 8 * h), scale);
      if (matrix.global_scale != 1.0F) {
        v = matrix.global_divides ? _mm256_div_ps(v, global) : _mm256_mul_ps(v, global);
      }
      _mm256_storeu_ps(out + 16 * code + 8 * h, v);
    }
  }
}

// The values of the codes in the low four bits of each dword.
SYNOD_INLINE __m256 fp4_values(__m256i index, const float* values) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values), index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values + 8), index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

void fp4_row(const Matrix& matrix, int64_t row, const std::byte* table, float* out) {
  const CodeRow r(matrix, row);
  const auto* values = reinterpret_cast<const float*>(table);
  const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
  const int64_t steps = matrix.group / 8;
  for (int64_t k = 0, g = 0; k < matrix.n_in; ++g) {
    const float* under = values + 16 * r.scales[g];
    for (int64_t s = 0; s < steps && k < matrix.n_in; ++s, k += 8) {
      _mm256_storeu_ps(out + k, fp4_values(_mm256_srlv_epi32(broadcast(r.codes + k / 2), shifts), under));
    }
  }
}

void nvfp4_block_row(const Matrix& matrix, int64_t row, const std::byte* table, float* out) {
  const CodeRow r(matrix, row);
  const auto* values = reinterpret_cast<const float*>(table);
  const uint8_t* block = r.codes;
  for (int64_t k = 0; k < matrix.n_in; k += 64, block += sizeof(BlockNVFP4)) {
    for (int s = 0; s < 4; ++s) {
      const float* under = values + 16 * block[s];
      const __m256i bytes =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 4 + 8 * s)));
      _mm256_storeu_ps(out + k + 16 * s, fp4_values(bytes, under));
      _mm256_storeu_ps(out + k + 16 * s + 8, fp4_values(_mm256_srli_epi32(bytes, 4), under));
    }
  }
}

// 16 E4M3 codes as f16 bits: exponents are 8 too small, subnormals come out right.
SYNOD_INLINE __m256i e4m3_as_f16(__m128i codes) {
  const __m256i wide = _mm256_cvtepi8_epi16(codes);
  const __m256i sign = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
  return _mm256_or_si256(sign, _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80)));
}

void fp8_row(const Matrix& matrix, int64_t row, const std::byte* /*table*/, float* out) {
  const CodeRow r(matrix, row);
  const __m256 raise = _mm256_set1_ps(256.0F);
  for (int64_t k = 0, g = 0; k < matrix.n_in; ++g) {
    const int64_t end = k + matrix.group < matrix.n_in ? k + matrix.group : matrix.n_in;
    const float factor = r.scale(matrix, g);
    const __m256 scale = _mm256_set1_ps(factor);
    for (; k + 16 <= end; k += 16) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(r.codes + k));
      const __m128i limit = _mm_set1_epi8(0x7f);
      if (_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_and_si128(codes, limit), limit)) != 0) {  // NaN: rare
        for (int64_t i = k; i < k + 16; ++i) out[i] = kE4m3Values[r.codes[i]] * factor;
        continue;
      }
      const __m256i half = e4m3_as_f16(codes);
      const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
      const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
      _mm256_storeu_ps(out + k, _mm256_mul_ps(_mm256_mul_ps(low, raise), scale));
      _mm256_storeu_ps(out + k + 8, _mm256_mul_ps(_mm256_mul_ps(high, raise), scale));
    }
    for (; k < end; ++k) out[k] = kE4m3Values[r.codes[k]] * factor;
  }
}

template <int kBits>
void affine_row(const Matrix& matrix, int64_t row, const std::byte* /*table*/, float* out) {
  const CodeRow r(matrix, row);
  // Eight codes are kBits bytes: four from a dword at the start, four from one at bit 4 kBits.
  constexpr int kBit = 4 * kBits % 8;
  const __m256i shifts = _mm256_setr_epi32(0, kBits, 2 * kBits, 3 * kBits, kBit, kBit + kBits,
                                           kBit + 2 * kBits, kBit + 3 * kBits);
  const __m256i code_mask = _mm256_set1_epi32((1 << kBits) - 1);
  // Dwords near the end would reach past the row: from a copy.
  constexpr int64_t kCopied = 16;
  const int64_t copied_from = matrix.n_in - kCopied;
  uint8_t tail[2 * kBits + 4] = {};
  __builtin_memcpy(tail, r.codes + copied_from / 8 * kBits, 2 * kBits);
  for (int64_t k = 0, g = 0; k < matrix.n_in; ++g) {
    const __m256 scale = _mm256_set1_ps(r.scale(matrix, g));
    const __m256 bias = _mm256_set1_ps(r.bias(matrix, g));
    const int64_t end = k + matrix.group < matrix.n_in ? k + matrix.group : matrix.n_in;
    for (; k < end; k += 8) {
      const uint8_t* p = k < copied_from ? r.codes + k / 8 * kBits : tail + (k - copied_from) / 8 * kBits;
      const __m256i dwords =
          _mm256_inserti128_si256(broadcast(p), _mm256_castsi256_si128(broadcast(p + kBits / 2)), 1);
      const __m256i codes = _mm256_and_si256(_mm256_srlv_epi32(dwords, shifts), code_mask);
      _mm256_storeu_ps(out + k, _mm256_add_ps(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(codes)), bias));
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
