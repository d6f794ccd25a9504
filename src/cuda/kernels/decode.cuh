// 16 consecutive values of a stored row, in two halves: `load` issues the memory reads, `values` turns them
// into f32. The GEMM puts its multiplications between the two. k is a multiple of 16.
#pragma once

#include "cuda/kernels/blocks.cuh"

namespace synod::cuda {

__device__ __forceinline__ const uint8_t* plane_row(const DeviceMatrix& m, int plane, int64_t row) {
  return m.plane[plane] + row * m.stride[plane];
}
template <typename T>
__device__ __forceinline__ T load(const uint8_t* p) {
  return __ldg(reinterpret_cast<const T*>(p));
}
__device__ __forceinline__ float half_at(const uint8_t* p) { return f16_value(load<uint16_t>(p)); }
__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ int byte_of(uint32_t w, int i) { return static_cast<int>(w >> (8 * i) & 255U); }

template <Codec kCodec>
struct Decoder;

template <>
struct Decoder<Codec::kQ8_0> {
  uint4 q;
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    q = load<uint4>(plane_row(m, 0, row) + k);
    d = half_at(plane_row(m, 1, row) + k / 32 * 2);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(byte_of(word(q, i / 4), i % 4))) * d;
    }
  }
};

// Nibbles of 32 values: the first 16 in the low halves.
struct NibbleBlock {
  uint4 q;
  int shift;
  __device__ __forceinline__ void load_codes(const DeviceMatrix& m, int64_t row, int k) {
    q = load<uint4>(plane_row(m, 0, row) + k / 32 * 16);
    shift = k % 32 / 16 * 4;
  }
  __device__ __forceinline__ int code(int i) const {
    return static_cast<int>(word(q, i / 4) >> (8 * (i % 4) + shift) & 15U);
  }
};

template <>
struct Decoder<Codec::kQ4_0> : NibbleBlock {
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    load_codes(m, row, k);
    d = half_at(plane_row(m, 1, row) + k / 32 * 2);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(code(i) - 8);
  }
};

template <>
struct Decoder<Codec::kQ5_0> : NibbleBlock {
  float d;
  uint32_t h;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    load_codes(m, row, k);
    h = load<uint32_t>(plane_row(m, 1, row) + k / 32 * 4) >> (k % 32);
    d = half_at(plane_row(m, 2, row) + k / 32 * 2);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((code(i) | static_cast<int>(h >> i & 1U) << 4) - 16);
    }
  }
};

template <>
struct Decoder<Codec::kIQ4_NL> : NibbleBlock {
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    load_codes(m, row, k);
    d = half_at(plane_row(m, 1, row) + k / 32 * 2);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(iq4_value(static_cast<uint32_t>(code(i))));
  }
};

template <>
struct Decoder<Codec::kMXFP4> : NibbleBlock {
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    load_codes(m, row, k);
    d = e8m0_half_of(load<uint8_t>(plane_row(m, 1, row) + k / 32));
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      out[i] = d * static_cast<float>(e2m1_doubled(static_cast<uint32_t>(code(i))));
  }
};

// {d, dmin, 12 bytes}: d * scale and dmin * min of the 32 values g.
__device__ __forceinline__ float2 k_scales(const uint4& s, int g) {
  const float d = f16_value(static_cast<uint16_t>(s.x)), dmin = f16_value(static_cast<uint16_t>(s.x >> 16));
  const int i = 8 * (g & 3);
  const uint32_t a = s.y >> i, b = s.z >> i, c = s.w >> i;  // bytes g % 4 of the three words
  const uint32_t scale = g < 4 ? a & 63U : (c & 15U) | (a >> 6 & 3U) << 4;
  const uint32_t min = g < 4 ? b & 63U : (c >> 4 & 15U) | (b >> 6 & 3U) << 4;
  return {d * static_cast<float>(scale), dmin * static_cast<float>(min)};
}

template <>
struct Decoder<Codec::kQ4_K> {
  uint4 q, s;
  int g;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const int block = k / 256;
    g = k % 256 / 32;
    q = load<uint4>(plane_row(m, 0, row) + block * 128 + g / 2 * 32 + k % 32);
    s = load<uint4>(plane_row(m, 1, row) + block * 16);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
    const float2 scale = k_scales(s, g);
    const int shift = 4 * (g & 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] = scale.x * static_cast<float>(word(q, i / 4) >> (8 * (i % 4) + shift) & 15U) - scale.y;
    }
  }
};

template <>
struct Decoder<Codec::kQ5_K> {
  uint4 q, h, s;
  int g;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const int block = k / 256;
    g = k % 256 / 32;
    q = load<uint4>(plane_row(m, 0, row) + block * 128 + g / 2 * 32 + k % 32);
    h = load<uint4>(plane_row(m, 1, row) + block * 32 + k % 32);
    s = load<uint4>(plane_row(m, 2, row) + block * 16);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
    const float2 scale = k_scales(s, g);
    const int shift = 4 * (g & 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t low = word(q, i / 4) >> (8 * (i % 4) + shift) & 15U;
      const uint32_t high = word(h, i / 4) >> (8 * (i % 4) + g) & 1U;
      out[i] = scale.x * static_cast<float>(low | high << 4) - scale.y;
    }
  }
};

template <>
struct Decoder<Codec::kQ6_K> {
  uint4 l, h;
  float scale;
  int t;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const int block = k / 256, g = k % 256 / 16, n = g / 8;
    t = g % 8 / 2;
    l = load<uint4>(plane_row(m, 0, row) + block * 128 + 64 * n + 32 * (t % 2) + 16 * (g % 2));
    h = load<uint4>(plane_row(m, 1, row) + block * 64 + 32 * n + 16 * (g % 2));
    scale = half_at(plane_row(m, 3, row) + block * 2) *
            static_cast<float>(static_cast<int8_t>(load<uint8_t>(plane_row(m, 2, row) + block * 16 + g)));
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t low = word(l, i / 4) >> (8 * (i % 4) + 4 * (t / 2)) & 15U;
      const uint32_t high = word(h, i / 4) >> (8 * (i % 4) + 2 * t) & 3U;
      out[i] = scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    }
  }
};

template <>
struct Decoder<Codec::kQ2_K> {
  uint4 q;
  float scale, min;
  int shift;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const int block = k / 256, g = k % 256 / 16;
    shift = 2 * (g % 8 / 2);
    q = load<uint4>(plane_row(m, 0, row) + block * 64 + 32 * (g / 8) + 16 * (g % 2));
    const uint32_t s = load<uint8_t>(plane_row(m, 1, row) + block * 16 + g);
    const uint32_t d = load<uint32_t>(plane_row(m, 2, row) + block * 4);
    scale = f16_value(static_cast<uint16_t>(d)) * static_cast<float>(s & 15U);
    min = f16_value(static_cast<uint16_t>(d >> 16)) * static_cast<float>(s >> 4);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(word(q, i / 4) >> (8 * (i % 4) + shift) & 3U) - min;
    }
  }
};

template <>
struct Decoder<Codec::kIQ2_XXS> {
  uint2 entry[2];
  uint32_t signs;  // two bytes
  float scale;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const int block = k / 256, half = k % 32 / 16;
    const uint2 q = load<uint2>(plane_row(m, 0, row) + block * 64 + k % 256 / 32 * 8);
    const auto* grid = static_cast<const uint2*>(m.codebook);
    const uint32_t indices = q.x >> (16 * half);
    entry[0] = __ldg(grid + (indices & 255U));
    entry[1] = __ldg(grid + (indices >> 8 & 255U));
    const uint32_t w = q.y >> (14 * half);
    signs = signs_of(w & 127U) | signs_of(w >> 7 & 127U) << 8;
    scale = half_at(plane_row(m, 1, row) + block * 2) * (0.5F + static_cast<float>(q.y >> 28)) * 0.25F;
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint2 e = entry[i / 8];
      const float v = scale * static_cast<float>(byte_of(i % 8 < 4 ? e.x : e.y, i % 4));
      out[i] = (signs >> i & 1U) != 0 ? -v : v;
    }
  }
};

// A value of any storage, one at a time.
__device__ inline float scalar_of(DType type, const uint8_t* p, int64_t i) {
  switch (type) {
    case DType::kF32:
      return __uint_as_float(u32_at(p + 4 * i));
    case DType::kF16:
      return f16_at(p + 2 * i);
    case DType::kBF16:
      return bf16_value(static_cast<uint16_t>(u16_at(p + 2 * i)));
    case DType::kF8E4M3:
      return e4m3_of(p[i]);
    case DType::kF8E8M0:
      return e8m0_of(p[i]);
    case DType::kF8E5M2:
      return f16_value(static_cast<uint16_t>(p[i] << 8));
    case DType::kU8:
      return static_cast<float>(p[i]);
    case DType::kI8:
      return static_cast<float>(static_cast<int8_t>(p[i]));
    default:
      return __uint_as_float(0x7fc00000U);
  }
}

__device__ inline float global_scaled(const DeviceMatrix& m, float v) {
  if (m.global == 1.0F) return v;
  return m.global_divides != 0 ? v / m.global : v * m.global;
}

__device__ inline float any_value(const DeviceMatrix& m, int64_t row, int k) {
  const uint8_t* codes = plane_row(m, 0, row);
  const auto scale_type = static_cast<DType>(m.scale_type);
  switch (m.codec) {
    case Codec::kF32:
      return load<float>(codes + 4 * static_cast<int64_t>(k));
    case Codec::kF16:
      return half_at(codes + 2 * static_cast<int64_t>(k));
    case Codec::kBF16:
      return bf16_value(load<uint16_t>(codes + 2 * static_cast<int64_t>(k)));
    case Codec::kF64:
      return static_cast<float>(load<double>(codes + 8 * static_cast<int64_t>(k)));
    case Codec::kBlocks: {
      const int64_t block = k / m.group;  // group: values per block, bits: bytes per block
      return block_value(static_cast<DType>(m.dtype), codes + block * m.bits, k % m.group, m.codebook);
    }
    case Codec::kFp8Block: {
      const uint8_t* scales = m.plane[1] + (m.row_offset + row) / m.tile_out * m.stride[1];
      return global_scaled(m, e4m3_of(codes[k]) * scalar_of(scale_type, scales, k / m.group));
    }
    case Codec::kMxFp8:
      return global_scaled(m, e4m3_of(codes[k]) * e8m0_of(plane_row(m, 1, row)[k / m.group]));
    case Codec::kFp4:
    case Codec::kNvFp4: {
      const uint32_t pair = codes[k / 2];
      const uint8_t scale = plane_row(m, 1, row)[k / m.group];
      const float s = m.codec == Codec::kFp4 ? e8m0_of(scale) : e4m3_of(scale);
      return global_scaled(m, e2m1_of(k % 2 == 0 ? pair & 15U : pair >> 4) * s);
    }
    case Codec::kMlxAffine: {
      const int64_t bit = static_cast<int64_t>(k) * m.bits;
      uint32_t w = codes[bit / 8];
      if (bit % 8 + m.bits > 8) w |= static_cast<uint32_t>(codes[bit / 8 + 1]) << 8;
      const uint32_t code = w >> (bit % 8) & ((1U << m.bits) - 1U);
      const float s = scalar_of(scale_type, plane_row(m, 1, row), k / m.group);
      const float b = scalar_of(scale_type, plane_row(m, 2, row), k / m.group);
      return global_scaled(m, s * static_cast<float>(code) + b);
    }
    default:
      return __uint_as_float(0x7fc00000U);
  }
}

// Any storage without a decoder of its own; the only one that may end inside the 16 values.
template <>
struct Decoder<Codec::kBlocks> {
  float v[16];
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = k + i < m.n_in ? any_value(m, row, k + i) : 0.0F;
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = v[i];
  }
};

// f32, f16 and bf16 rows of a multiple of 16 values.
template <>
struct Decoder<Codec::kF32> {
  float4 q[4];
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const uint8_t* p = plane_row(m, 0, row) + 4 * static_cast<int64_t>(k);
#pragma unroll
    for (int i = 0; i < 4; ++i) q[i] = load<float4>(p + 16 * i);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[4 * i] = q[i].x, out[4 * i + 1] = q[i].y, out[4 * i + 2] = q[i].z, out[4 * i + 3] = q[i].w;
    }
  }
};
template <>
struct Decoder<Codec::kF16> {
  uint4 q[2];
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int k) {
    const uint8_t* p = plane_row(m, 0, row) + 2 * static_cast<int64_t>(k);
    q[0] = load<uint4>(p), q[1] = load<uint4>(p + 16);
  }
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] = f16_value(static_cast<uint16_t>(word(q[i / 8], i % 8 / 2) >> (16 * (i % 2))));
    }
  }
};
template <>
struct Decoder<Codec::kBF16> : Decoder<Codec::kF16> {
  __device__ __forceinline__ void values(float (&out)[16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      out[i] = bf16_value(static_cast<uint16_t>(word(q[i / 8], i % 8 / 2) >> (16 * (i % 2))));
    }
  }
};

// Calls run(Decoder type tag) for the codec of a matrix.
template <Codec kCodec>
struct Tag {
  static constexpr Codec kValue = kCodec;
};
template <typename Run>
auto with_codec(Codec codec, bool aligned, Run&& run) {
  switch (codec) {
    case Codec::kQ8_0:
      return run(Tag<Codec::kQ8_0>{});
    case Codec::kQ4_0:
      return run(Tag<Codec::kQ4_0>{});
    case Codec::kQ5_0:
      return run(Tag<Codec::kQ5_0>{});
    case Codec::kIQ4_NL:
      return run(Tag<Codec::kIQ4_NL>{});
    case Codec::kMXFP4:
      return run(Tag<Codec::kMXFP4>{});
    case Codec::kQ4_K:
      return run(Tag<Codec::kQ4_K>{});
    case Codec::kQ5_K:
      return run(Tag<Codec::kQ5_K>{});
    case Codec::kQ6_K:
      return run(Tag<Codec::kQ6_K>{});
    case Codec::kQ2_K:
      return run(Tag<Codec::kQ2_K>{});
    case Codec::kIQ2_XXS:
      return run(Tag<Codec::kIQ2_XXS>{});
    case Codec::kF32:
      if (aligned) return run(Tag<Codec::kF32>{});
      break;
    case Codec::kF16:
      if (aligned) return run(Tag<Codec::kF16>{});
      break;
    case Codec::kBF16:
      if (aligned) return run(Tag<Codec::kBF16>{});
      break;
    default:
      break;
  }
  return run(Tag<Codec::kBlocks>{});
}

// 16-byte loads of rows are allowed.
inline bool rows_aligned(const DeviceMatrix& m) {
  return m.n_in % 16 == 0 && m.stride[0] % 16 == 0 && reinterpret_cast<uintptr_t>(m.plane[0]) % 16 == 0;
}

}  // namespace synod::cuda
