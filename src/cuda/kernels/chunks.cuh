// What one lane does with 16 bytes of codes of a row: the inner loop of every matrix-vector product.
// Codecs with integer codes multiply them exactly with the digits of x (digits.cuh); the others use f32. A
// chunk keeps its weights in registers, `X` the activations that several rows share.
#pragma once

#include "cuda/kernels/decode.cuh"

namespace synod::cuda {

__device__ __forceinline__ int dot4(uint32_t codes, uint32_t x, int sum) {
  return __dp4a(static_cast<int>(codes), static_cast<int>(x), sum);
}

// Digits of 16 values.
struct Digits16 {
  uint4 high, low;
  __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int k) {
    high = *reinterpret_cast<const uint4*>(x + k);
    low = *reinterpret_cast<const uint4*>(x + n_in + k);
  }
  // 254 * sum(code * high) + sum(code * low) over four words of codes.
  __device__ __forceinline__ int dot(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) const {
    int h = dot4(c0, high.x, 0), l = dot4(c0, low.x, 0);
    h = dot4(c1, high.y, h), l = dot4(c1, low.y, l);
    h = dot4(c2, high.z, h), l = dot4(c2, low.z, l);
    h = dot4(c3, high.w, h), l = dot4(c3, low.w, l);
    return 254 * h + l;
  }
};
// {s, s * sum of all, s * sum of the first 16, s * sum of the last 16} of the 32 values at k.
__device__ __forceinline__ float4 digits_meta(const uint8_t* x, int n_in, int k) {
  return reinterpret_cast<const float4*>(x + 2 * static_cast<int64_t>(n_in))[k / 32];
}

template <Codec kCodec>
struct Chunk;

template <>
struct Chunk<Codec::kQ8_0> {
  static constexpr int kValues = 16;
  static constexpr bool kDigits = true;
  uint4 q;
  float d;
  struct X {
    Digits16 v;
    float s;
    __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int c) {
      v.load_from(x, n_in, 16 * c);
      s = digits_meta(x, n_in, 16 * c).x;
    }
  };
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    d = half_at(plane_row(m, 1, row) + c / 2 * 2);
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    return static_cast<float>(x.v.dot(q.x, q.y, q.z, q.w)) * (d * x.s);
  }
};

// 32 values with nibble codes.
struct Nibbles {
  static constexpr int kValues = 32;
  static constexpr bool kDigits = true;
  uint4 q;
  struct X {
    Digits16 a, b;
    float s, sum;
    __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int c) {
      a.load_from(x, n_in, 32 * c);
      b.load_from(x, n_in, 32 * c + 16);
      const float4 m = digits_meta(x, n_in, 32 * c);
      s = m.x, sum = m.y;
    }
  };
  static __device__ __forceinline__ uint32_t low(uint32_t w) { return w & 0x0f0f0f0fU; }
  static __device__ __forceinline__ uint32_t high(uint32_t w) { return w >> 4 & 0x0f0f0f0fU; }
};

template <>
struct Chunk<Codec::kQ4_0> : Nibbles {
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    d = half_at(plane_row(m, 1, row) + 2 * c);
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    const int sum =
        x.a.dot(low(q.x), low(q.y), low(q.z), low(q.w)) + x.b.dot(high(q.x), high(q.y), high(q.z), high(q.w));
    return d * (x.s * static_cast<float>(sum) - 8.0F * x.sum);
  }
};

template <>
struct Chunk<Codec::kQ5_0> : Nibbles {
  float d;
  uint32_t h;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    h = load<uint32_t>(plane_row(m, 1, row) + 4 * c);
    d = half_at(plane_row(m, 2, row) + 2 * c);
  }
  // Bits i, ..., i + 3 of h as bit 4 of the four bytes.
  __device__ __forceinline__ uint32_t fifth(int i) const {
    return (h >> i & 15U) * 0x02040810U & 0x10101010U;
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    const int sum =
        x.a.dot(low(q.x) | fifth(0), low(q.y) | fifth(4), low(q.z) | fifth(8), low(q.w) | fifth(12)) +
        x.b.dot(high(q.x) | fifth(16), high(q.y) | fifth(20), high(q.z) | fifth(24), high(q.w) | fifth(28));
    return d * (x.s * static_cast<float>(sum) - 16.0F * x.sum);
  }
};

// Looks up the eight nibbles of a word in a table of 16 bytes: values of the low nibbles, then of the high
// ones.
__device__ __forceinline__ uint2 look_up(uint32_t w, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
  const auto four = [&](uint32_t v) {  // nibbles 0-3 of v, in order
    const uint32_t low = __byte_perm(t0, t1, v & 0x7777U), high = __byte_perm(t2, t3, v & 0x7777U);
    return __byte_perm(low, high, 0x3210U | (v & 0x8888U) >> 1);
  };
  const uint32_t a = four(w), b = four(w >> 16);
  return {__byte_perm(a, b, 0x6420U), __byte_perm(a, b, 0x7531U)};
}

template <>
struct Chunk<Codec::kIQ4_NL> : Nibbles {
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    d = half_at(plane_row(m, 1, row) + 2 * c);
  }
  static __device__ __forceinline__ int sum_of(const uint4& q, const X& x, uint32_t t0, uint32_t t1,
                                               uint32_t t2, uint32_t t3) {
    const uint2 v0 = look_up(q.x, t0, t1, t2, t3), v1 = look_up(q.y, t0, t1, t2, t3),
                v2 = look_up(q.z, t0, t1, t2, t3), v3 = look_up(q.w, t0, t1, t2, t3);
    return x.a.dot(v0.x, v1.x, v2.x, v3.x) + x.b.dot(v0.y, v1.y, v2.y, v3.y);
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    return static_cast<float>(sum_of(q, x, 0xBFAD9881U, 0xF6EADDCFU, 0x26190D01U, 0x71594535U)) * (d * x.s);
  }
};

template <>
struct Chunk<Codec::kMXFP4> : Nibbles {
  float d;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    d = e8m0_half_of(load<uint8_t>(plane_row(m, 1, row) + c));
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    // 0 1 2 3 | 4 6 8 12 | -0 -1 -2 -3 | -4 -6 -8 -12
    const int sum = Chunk<Codec::kIQ4_NL>::sum_of(q, x, 0x03020100U, 0x0C080604U, 0xFDFEFF00U, 0xF4F8FAFCU);
    return static_cast<float>(sum) * (d * x.s);
  }
};

// Two runs of 16 values with scale and minimum: Q4_K and Q5_K. c % 8: bytes [16 (c % 8), + 16) of the block.
struct KChunk {
  static constexpr int kValues = 32;
  static constexpr bool kDigits = true;
  uint4 q, s;
  int g;  // of the first run; the second is g + 1
  struct X {
    Digits16 a, b;
    float sa, sb, ma, mb;
    __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int c) {
      const int k = c / 8 * 256 + c % 8 / 2 * 64 + c % 2 * 16;
      a.load_from(x, n_in, k);
      b.load_from(x, n_in, k + 32);
      const float4 m = digits_meta(x, n_in, k), n = digits_meta(x, n_in, k + 32);
      sa = m.x, sb = n.x;
      ma = c % 2 == 0 ? m.z : m.w, mb = c % 2 == 0 ? n.z : n.w;
    }
  };
  __device__ __forceinline__ float scaled(const X& x, int a, int b) const {
    const float2 first = k_scales(s, g), second = k_scales(s, g + 1);
    const float u = first.x * (x.sa * static_cast<float>(a)) - first.y * x.ma;
    return u + (second.x * (x.sb * static_cast<float>(b)) - second.y * x.mb);
  }
};

template <>
struct Chunk<Codec::kQ4_K> : KChunk {
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    s = load<uint4>(plane_row(m, 1, row) + c / 8 * 16);
    g = c % 8 / 2 * 2;
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    using N = Nibbles;
    return scaled(x, x.a.dot(N::low(q.x), N::low(q.y), N::low(q.z), N::low(q.w)),
                  x.b.dot(N::high(q.x), N::high(q.y), N::high(q.z), N::high(q.w)));
  }
};

template <>
struct Chunk<Codec::kQ5_K> : KChunk {
  uint4 h;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    h = load<uint4>(plane_row(m, 1, row) + c / 8 * 32 + c % 2 * 16);
    s = load<uint4>(plane_row(m, 2, row) + c / 8 * 16);
    g = c % 8 / 2 * 2;
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    using N = Nibbles;
    const auto fifth = [&](uint32_t w, int bit) { return (w >> bit & 0x01010101U) << 4; };
    return scaled(x,
                  x.a.dot(N::low(q.x) | fifth(h.x, g), N::low(q.y) | fifth(h.y, g),
                          N::low(q.z) | fifth(h.z, g), N::low(q.w) | fifth(h.w, g)),
                  x.b.dot(N::high(q.x) | fifth(h.x, g + 1), N::high(q.y) | fifth(h.y, g + 1),
                          N::high(q.z) | fifth(h.z, g + 1), N::high(q.w) | fifth(h.w, g + 1)));
  }
};

// c % 8: bytes [16 (c % 8), + 16) of the low nibbles: runs of 16 values at k and k + 64.
template <>
struct Chunk<Codec::kQ6_K> {
  static constexpr int kValues = 32;
  static constexpr bool kDigits = true;
  uint4 l, h;
  float da, db;
  int shift;
  struct X {
    Digits16 a, b;
    float sa, sb, ma, mb;
    __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int c) {
      const int k = c / 8 * 256 + c % 8 / 4 * 128 + c % 4 * 16;
      a.load_from(x, n_in, k);
      b.load_from(x, n_in, k + 64);
      const float4 m = digits_meta(x, n_in, k), n = digits_meta(x, n_in, k + 64);
      sa = m.x, sb = n.x;
      ma = c % 2 == 0 ? m.z : m.w, mb = c % 2 == 0 ? n.z : n.w;
    }
  };
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    const int block = c / 8, n = c % 8 / 4, part = c % 4;
    l = load<uint4>(plane_row(m, 0, row) + 16 * c);
    h = load<uint4>(plane_row(m, 1, row) + block * 64 + 32 * n + 16 * (part % 2));
    const uint8_t* scales = plane_row(m, 2, row) + block * 16 + 8 * n + part;
    const float d = half_at(plane_row(m, 3, row) + 2 * block);
    da = d * static_cast<float>(static_cast<int8_t>(load<uint8_t>(scales)));
    db = d * static_cast<float>(static_cast<int8_t>(load<uint8_t>(scales + 4)));
    shift = 2 * (part / 2);
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    using N = Nibbles;
    const auto top = [&](uint32_t w, int s) { return (w >> s & 0x03030303U) << 4; };
    const int a = x.a.dot(N::low(l.x) | top(h.x, shift), N::low(l.y) | top(h.y, shift),
                          N::low(l.z) | top(h.z, shift), N::low(l.w) | top(h.w, shift));
    const int b = x.b.dot(N::high(l.x) | top(h.x, shift + 4), N::high(l.y) | top(h.y, shift + 4),
                          N::high(l.z) | top(h.z, shift + 4), N::high(l.w) | top(h.w, shift + 4));
    return da * (x.sa * static_cast<float>(a) - 32.0F * x.ma) +
           db * (x.sb * static_cast<float>(b) - 32.0F * x.mb);
  }
};

// c % 4: bytes [16 (c % 4), + 16) of the block: four runs of 16 values, 32 apart.
template <>
struct Chunk<Codec::kQ2_K> {
  static constexpr int kValues = 64;
  static constexpr bool kDigits = true;
  uint4 q;
  uint32_t scales, d;  // scale bytes of the four runs
  struct X {
    Digits16 v[4];
    float s[4], sum[4];
    __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int c) {
      const int k = c / 4 * 256 + c % 4 / 2 * 128 + c % 2 * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i].load_from(x, n_in, k + 32 * i);
        const float4 m = digits_meta(x, n_in, k + 32 * i);
        s[i] = m.x, sum[i] = c % 2 == 0 ? m.z : m.w;
      }
    }
  };
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    const int block = c / 4, n = c % 4 / 2;
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    const uint2 s = load<uint2>(plane_row(m, 1, row) + 16 * block + 8 * n);
    scales = __byte_perm(s.x, s.y, c % 2 == 0 ? 0x6420U : 0x7531U);
    d = load<uint32_t>(plane_row(m, 2, row) + 4 * block);
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    float a = 0.0F, b = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto codes = [&](uint32_t w) { return w >> (2 * i) & 0x03030303U; };
      const auto sum = static_cast<float>(x.v[i].dot(codes(q.x), codes(q.y), codes(q.z), codes(q.w)));
      a = fmaf(static_cast<float>(scales >> (8 * i) & 15U), x.s[i] * sum, a);
      b = fmaf(static_cast<float>(scales >> (8 * i + 4) & 15U), x.sum[i], b);
    }
    return f16_value(static_cast<uint16_t>(d)) * a - f16_value(static_cast<uint16_t>(d >> 16)) * b;
  }
};

// Two groups of 32 values; `grid` is the codebook in shared memory.
template <>
struct Chunk<Codec::kIQ2_XXS> {
  static constexpr int kValues = 64;
  static constexpr bool kDigits = true;
  uint4 q;
  float d;
  struct X {
    Digits16 v[4];
    float s[2];
    __device__ __forceinline__ void load_from(const uint8_t* x, int n_in, int c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i].load_from(x, n_in, 64 * c + 16 * i);
      s[0] = digits_meta(x, n_in, 64 * c).x;
      s[1] = digits_meta(x, n_in, 64 * c + 32).x;
    }
  };
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * c);
    d = 0.25F * half_at(plane_row(m, 1, row) + c / 4 * 2);
  }
  // A coordinate e is at most 43, so its complement plus one does not carry into the next byte.
  static __device__ __forceinline__ uint32_t with_signs(uint32_t e, uint32_t four_bits) {
    const uint32_t minus = (four_bits & 15U) * 0x00204081U & 0x01010101U;
    return (e ^ minus * 255U) + minus;
  }
  __device__ __forceinline__ float dot(const X& x, const void* grid) const {
    const auto* entries = static_cast<const uint2*>(grid);
    float result = 0.0F;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t indices = i == 0 ? q.x : q.z, w = i == 0 ? q.y : q.w;
      int sum = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 e = entries[indices >> (16 * half) & 255U],
                    f = entries[indices >> (16 * half + 8) & 255U];
        const uint32_t se = signs_of(w >> (14 * half) & 127U), sf = signs_of(w >> (14 * half + 7) & 127U);
        sum += x.v[2 * i + half].dot(with_signs(e.x, se), with_signs(e.y, se >> 4), with_signs(f.x, sf),
                                     with_signs(f.y, sf >> 4));
      }
      result += (0.5F + static_cast<float>(w >> 28)) * (x.s[i] * static_cast<float>(sum));
    }
    return d * result;
  }
};

// f32 activations of aligned rows.
template <int kN>
struct FloatX {
  float v[kN];
  __device__ __forceinline__ void load_from(const float* x, int, int c) {
#pragma unroll
    for (int i = 0; i < kN; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(x + kN * c + i);
      v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
    }
  }
};
// Of any rows.
struct AnyX {
  float v[8];
  __device__ __forceinline__ void load_from(const float* x, int n_in, int c) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = 8 * c + i < n_in ? x[8 * c + i] : 0.0F;
  }
};

template <>
struct Chunk<Codec::kF16> {
  static constexpr int kValues = 8;
  static constexpr bool kDigits = false;
  using X = FloatX<8>;
  uint4 q;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<uint4>(plane_row(m, 0, row) + 16 * static_cast<int64_t>(c));
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(f16_value(static_cast<uint16_t>(word(q, i / 2) >> (16 * (i % 2)))), x.v[i], sum);
    }
    return sum;
  }
};
template <>
struct Chunk<Codec::kBF16> : Chunk<Codec::kF16> {
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum = fmaf(bf16_value(static_cast<uint16_t>(word(q, i / 2) >> (16 * (i % 2)))), x.v[i], sum);
    }
    return sum;
  }
};
template <>
struct Chunk<Codec::kF32> {
  static constexpr int kValues = 4;
  static constexpr bool kDigits = false;
  using X = FloatX<4>;
  float4 q;
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    q = load<float4>(plane_row(m, 0, row) + 16 * static_cast<int64_t>(c));
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    return fmaf(q.w, x.v[3], fmaf(q.z, x.v[2], fmaf(q.y, x.v[1], q.x * x.v[0])));
  }
};
// Any other storage, value by value.
template <>
struct Chunk<Codec::kBlocks> {
  static constexpr int kValues = 8;
  static constexpr bool kDigits = false;
  using X = AnyX;
  float q[8];
  __device__ __forceinline__ void load_from(const DeviceMatrix& m, int64_t row, int c) {
    for (int i = 0; i < 8; ++i) q[i] = 8 * c + i < m.n_in ? any_value(m, row, 8 * c + i) : 0.0F;
  }
  __device__ __forceinline__ float dot(const X& x, const void*) const {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(q[i], x.v[i], sum);
    return sum;
  }
};

// The codec whose chunk a matrix takes.
inline Codec chunk_codec(const DeviceMatrix& m, const View* x = nullptr) {
  const bool float_rows = m.codec == Codec::kF32 || m.codec == Codec::kF16 || m.codec == Codec::kBF16;
  if (float_rows && x != nullptr &&
      (reinterpret_cast<uintptr_t>(x->p) % 16 != 0 || x->s0 % 4 != 0 || (x->n1 > 1 && x->s1 % 4 != 0))) {
    return Codec::kBlocks;
  }
  switch (m.codec) {
    case Codec::kF32:
      return m.n_in % 4 == 0 && m.stride[0] % 16 == 0 ? Codec::kF32 : Codec::kBlocks;
    case Codec::kF16:
    case Codec::kBF16:
      return m.n_in % 8 == 0 && m.stride[0] % 16 == 0 ? m.codec : Codec::kBlocks;
    case Codec::kQ8_0:
    case Codec::kQ4_0:
    case Codec::kQ5_0:
    case Codec::kIQ4_NL:
    case Codec::kMXFP4:
    case Codec::kQ4_K:
    case Codec::kQ5_K:
    case Codec::kQ6_K:
    case Codec::kQ2_K:
    case Codec::kIQ2_XXS:
      return m.codec;
    default:
      return Codec::kBlocks;
  }
}

template <typename Run>
auto with_chunk(Codec codec, Run&& run) {
  if (codec == Codec::kF32) return run(Tag<Codec::kF32>{});
  return with_codec(codec, true, run);
}

}  // namespace synod::cuda
