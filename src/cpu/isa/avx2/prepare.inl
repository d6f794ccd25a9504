// Quantizes activations: the arithmetic of prepare_scalar, 8 values at a time.

SYNOD_INLINE uint32_t largest_magnitude(const float* x, int n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < n; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, magnitude));
  }
  __m128i v = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_max_epu32(v, _mm_shuffle_epi32(v, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(v));
}

// Quantizes 16 values and returns the sum of the codes.
SYNOD_INLINE int32_t quantize16(const float* x, float inverse, int8_t* q) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), factor));
  const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), factor));
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  const __m128i codes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), codes);
  const __m256i both = _mm256_add_epi32(a, b);
  __m128i v = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return _mm_cvtsi128_si32(v);
}

// q of 16 N values, the sums of 16, and the scale.
template <int N>
SYNOD_INLINE float quantize(const float* x, int8_t* q, int32_t (&sum16)[N]) {
  const uint32_t top = largest_magnitude(x, 16 * N);
  float amax;
  __builtin_memcpy(&amax, &top, sizeof(amax));
  const float inverse = 127.0F / amax;
  if (top < 0x7f800000U && inverse <= 3.402823466e+38F) {
    for (int i = 0; i < N; ++i) sum16[i] = quantize16(x + 16 * i, inverse, q + 16 * i);
    return amax / 127.0F;
  }
  __builtin_memset(q, 0, 16 * N);
  __builtin_memset(sum16, 0, sizeof(sum16));
  float d = 0.0F;  // zero or tiny
  if (top >= 0x7f800000U) {
    constexpr uint32_t kNan = 0x7fc00000U;
    __builtin_memcpy(&d, &kNan, sizeof(d));
  }
  return d;
}

// Moves 256 codes to their positions.
SYNOD_INLINE void transpose(ActivationKind kind, int8_t* q) {
  if (kind == ActivationKind::kBlocks256) return;
  for (int i = 0; i < 256; i += 32) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i),
                        kind == ActivationKind::kBlocks256By4 ? by4(v) : by8(v));
  }
}

void prepare(ActivationKind kind, const float* x, int64_t k, std::byte* record) {
  if (is_blocks256(kind) && k % 256 == 0) {
    auto* chunks = reinterpret_cast<Chunk256*>(record);
    for (int64_t c = 0; c < k / 256; ++c) {
      int32_t sum16[16];
      chunks[c].d = quantize<16>(x + 256 * c, chunks[c].q, sum16);
      set_sums(sum16, chunks[c]);
      transpose(kind, chunks[c].q);
      __builtin_memset(chunks[c].unused, 0, sizeof(chunks[c].unused));
    }
  } else if (kind == ActivationKind::kBlocks32 && k % 32 == 0) {
    auto* chunks = reinterpret_cast<Chunk32*>(record);
    for (int64_t b = 0; b < k / 32; ++b) {
      Chunk32& chunk = chunks[b / 8];
      const int j = static_cast<int>(b % 8);
      if (j == 0 && b + 8 > k / 32) __builtin_memset(&chunk, 0, sizeof(chunk));
      int32_t sum16[2];
      chunk.d[j] = quantize<2>(x + 32 * b, chunk.q + 32 * j, sum16);
      set_sums(j, sum16[0] + sum16[1], chunk);
    }
  } else {
    prepare_scalar(kind, x, k, record);
  }
}
