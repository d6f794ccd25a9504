// Quantizes activations: the arithmetic of prepare_scalar, 16 values at a time.

// q of N registers of values, and their scale.
template <int N>
SYNOD_INLINE float quantize(const float* x, int8_t* q, int32_t (&sum16)[N]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x + 16 * i), magnitude);
    largest = _mm512_max_epu32(largest, bits);
  }
  const uint32_t top = _mm512_reduce_max_epu32(largest);
  float d = 0.0F;
  float inverse = 0.0F;
  if (top >= 0x7f800000U) {
    constexpr uint32_t kNan = 0x7fc00000U;
    __builtin_memcpy(&d, &kNan, sizeof(d));
  } else {
    float amax;
    __builtin_memcpy(&amax, &top, sizeof(amax));
    const float candidate = 127.0F / amax;
    if (candidate <= 3.402823466e+38F) {
      inverse = candidate;
      d = amax / 127.0F;
    }
  }
  if (inverse == 0.0F) {  // zero, tiny or not finite
    for (int i = 0; i < N; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * i), _mm_setzero_si128());
      sum16[i] = 0;
    }
    return d;
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) {
    const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_set1_ps(inverse)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * i), _mm512_cvtepi32_epi8(v));
    sum16[i] = _mm512_reduce_add_epi32(v);
  }
  return d;
}

// For each position in 64 values of a kind, the value that belongs there.
struct alignas(64) Order64 {
  uint8_t from[64];
};
constexpr Order64 order64(ActivationKind kind) {
  Order64 order{};
  for (int i = 0; i < 64; ++i) order.from[position_of(kind, i)] = static_cast<uint8_t>(i);
  return order;
}
constexpr Order64 kBy4Order = order64(ActivationKind::kBlocks256By4);
constexpr Order64 kBy8Order = order64(ActivationKind::kBlocks256By8);

// Moves 256 codes to their positions.
SYNOD_INLINE void transpose(ActivationKind kind, int8_t* q) {
  if (kind == ActivationKind::kBlocks256) return;
  const __m512i order =
      _mm512_load_si512(kind == ActivationKind::kBlocks256By4 ? kBy4Order.from : kBy8Order.from);
  for (int i = 0; i < 256; i += 64) {
    _mm512_storeu_si512(q + i, _mm512_permutexvar_epi8(order, _mm512_loadu_si512(q + i)));
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
