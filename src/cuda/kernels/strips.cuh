// Block-coded weights as operand A of wgmma. A step is 64 inputs of a row: its codes come to shared memory as
// strips [256 rows][bytes], its scales as {scale, min} per row and group, and a thread turns both into f16
// for the inputs 8 * part to 8 * part + 7 of either 32, where part is its place among the four threads of a
// row. So that these are its registers of the operand, activations have the order of HalfRows. Values are
// those of decode.cuh: f32, rounded once.
#pragma once

#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/fetch.cuh"

namespace synod::cuda {

inline constexpr int kStripRows = 256, kStripThreads = 128, kStripInputs = 64;

// The rows of a tile in four groups of 64: even groups are rows of `weight`, odd ones the next rows of it or
// the same rows of `up`.
struct StripRows {
  int64_t even, odd;            // first row in the matrix
  int32_t even_left, odd_left;  // rows from there to the end of the matrix or expert
  int32_t step;                 // from an even group to the next
  // Counted from `even` or `odd`; rows past the end are the last row.
  __device__ __forceinline__ int32_t row(int group, int r) const {
    return min(group / 2 * step + r, (group % 2 == 0 ? even_left : odd_left) - 1);
  }
};

// A plane of two matrices alike.
struct StripPlane {
  const uint8_t* even;
  const uint8_t* odd;
  int64_t stride;
};
__device__ __forceinline__ StripPlane plane_of(const GemmParams& p, int plane) {
  return {p.weight.plane[plane], p.up.plane[plane], p.weight.stride[plane]};
}
__device__ __forceinline__ const uint8_t* row_at(const StripPlane& plane, const StripRows& rows, int i) {
  const int tid = static_cast<int>(threadIdx.x) % kStripThreads;
  const int64_t first = tid < 64 ? rows.even : rows.odd;
  return (tid < 64 ? plane.even : plane.odd) + (first + rows.row(2 * i + tid / 64, tid % 64)) * plane.stride;
}
template <int kBytes>
__device__ __forceinline__ void fetch_some(uint32_t to, const void* from) {
  if constexpr (kBytes == 16) {
    fetch_16(to, from);
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
  }
}
// Scales as stored, kBytes of row i * kStripThreads + thread.
template <int kBytes>
__device__ __forceinline__ void copy_scale(const StripPlane& plane, const StripRows& rows, int i,
                                           int64_t offset, uint32_t to) {
  fetch_some<kBytes>(to, row_at(plane, rows, i) + offset);
}
// The word that holds the two bytes at `offset`; the result says which half of it.
__device__ __forceinline__ uint32_t copy_half_word(const StripPlane& plane, const StripRows& rows, int i,
                                                   int64_t offset, uint32_t to) {
  const auto from = reinterpret_cast<uint64_t>(row_at(plane, rows, i) + offset);
  fetch_4(to, reinterpret_cast<const void*>(from & ~uint64_t{3}));
  return static_cast<uint32_t>(from >> 1 & 1U);
}
__device__ __forceinline__ uint32_t half_word(uint32_t word, uint32_t upper) {
  return word >> (16 * upper) & 0xFFFFU;
}

// kBytes of each row from byte `offset` on.
template <int kBytes>
__device__ __forceinline__ void copy_strip(const StripPlane& plane, const StripRows& rows, int64_t offset,
                                           uint32_t to) {
  constexpr int kPiece = kBytes < 16 ? kBytes : 16, kPieces = kBytes / kPiece;
  const int tid = static_cast<int>(threadIdx.x) % kStripThreads;
  const uint8_t* even = plane.even + rows.even * plane.stride + offset;
  const uint8_t* odd = plane.odd + rows.odd * plane.stride + offset;
  const auto stride = static_cast<int32_t>(plane.stride);
#pragma unroll
  for (int i = 0; i < kStripRows * kPieces / kStripThreads; ++i) {
    const int group = kPieces == 1 ? 2 * i + tid / 64 : 2 * i / kPieces;
    const int r = kPieces == 1 ? tid % 64 : i * (kStripThreads / kPieces) % 64 + tid / kPieces;
    const uint8_t* from = (group % 2 == 0 ? even : odd) + static_cast<int64_t>(rows.row(group, r)) * stride +
                          tid % kPieces * kPiece;
    const uint32_t at = to + static_cast<uint32_t>(i * kStripThreads + tid) * kPiece;
    fetch_some<kPiece>(at, from);
  }
}

__device__ __forceinline__ __half2 as_half2(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }
__device__ __forceinline__ uint32_t bits_of(const __half2& h) {
  return *reinterpret_cast<const uint32_t*>(&h);
}

// Four bytes, of which kZero stands for 0, as f16: 1024 + byte has the byte in its lowest bits.
template <int kZero>
__device__ __forceinline__ void bytes_to_half(uint32_t bytes, __half2* out) {
  const __half2 zero = __half2half2(__ushort_as_half(static_cast<uint16_t>(0x6400 + kZero)));
  out[0] = __hsub2(as_half2(__byte_perm(bytes, 0x64646464U, 0x4140)), zero);
  out[1] = __hsub2(as_half2(__byte_perm(bytes, 0x64646464U, 0x4342)), zero);
}
__device__ __forceinline__ uint2 strip_8(const uint8_t* strip, int at) {
  return *reinterpret_cast<const uint2*>(strip + at);
}

// Per codec: kStripBytes of codes in all strips and kScaleBytes of scales as stored, per row; kGroup: inputs
// of a scale; kMin: there are minima; copy(): starts the copies of the codes; copy_scales(): that of the
// scales of row i * kStripThreads + thread, returning what Scales, {scale, min} of group g by value(g), has
// to know besides the bytes (at most 8 bits); codes(): the integers of 16 inputs as eight pairs.
template <Codec kCodec>
struct Strips {
  static constexpr bool kFits = false;
};

// f16 scales of the two blocks of 32.
template <int kPlane>
struct BlockScales {
  static constexpr int kScaleBytes = 4;
  static __device__ __forceinline__ uint32_t copy_scales(const GemmParams& p, const StripRows& rows, int step,
                                                         int i, uint32_t to) {
    copy_scale<4>(plane_of(p, kPlane), rows, i, step * 4, to);
    return 0;
  }
  struct Scales {
    uint32_t d;
    __device__ __forceinline__ Scales(const uint8_t* stored, uint32_t, const uint8_t*, int)
        : d(*reinterpret_cast<const uint32_t*>(stored)) {}
    __device__ __forceinline__ float2 value(int g) const {
      return {f16_value(static_cast<uint16_t>(d >> (16 * g))), 0.0F};
    }
  };
};

template <>
struct Strips<Codec::kQ8_0> : BlockScales<1> {
  static constexpr bool kFits = true, kMin = false;
  static constexpr int kStripBytes = 64, kGroup = 32;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<32>(plane_of(p, 0), rows, step * 64, to);
    copy_strip<32>(plane_of(p, 0), rows, step * 64 + 32, to + 32 * kStripRows);
  }
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int, const uint2*,
                                               __half2 (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 q = strip_8(strips + i * 32 * kStripRows, row * 32 + 8 * part);
      bytes_to_half<128>(q.x ^ 0x80808080U, out + 4 * i);
      bytes_to_half<128>(q.y ^ 0x80808080U, out + 4 * i + 2);
    }
  }
};

// Blocks of 32: nibbles, the first 16 in the low halves.
template <int kScalePlane>
struct NibbleStrips : BlockScales<kScalePlane> {
  static constexpr bool kFits = true, kMin = false;
  static constexpr int kStripBytes = 32, kGroup = 32;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<32>(plane_of(p, 0), rows, step * 32, to);
  }
  // Codes of block i, one per byte.
  static __device__ __forceinline__ uint2 nibbles(const uint8_t* strips, int row, int part, int i) {
    const uint2 q = strip_8(strips, row * 32 + 16 * i + 8 * (part % 2));
    const int shift = part / 2 * 4;
    return make_uint2(q.x >> shift & 0x0F0F0F0FU, q.y >> shift & 0x0F0F0F0FU);
  }
};

template <>
struct Strips<Codec::kQ4_0> : NibbleStrips<1> {
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int, const uint2*,
                                               __half2 (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 q = nibbles(strips, row, part, i);
      bytes_to_half<8>(q.x, out + 4 * i);
      bytes_to_half<8>(q.y, out + 4 * i + 2);
    }
  }
};

// Four bits, the lowest ones of `bits`, as four bytes.
__device__ __forceinline__ uint32_t spread_bits(uint32_t bits) {
  return (bits & 15U) * 0x00204081U & 0x01010101U;
}

template <>
struct Strips<Codec::kQ5_0> : NibbleStrips<2> {
  static constexpr int kStripBytes = 40;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    NibbleStrips<2>::copy(p, rows, step, to);
    copy_strip<8>(plane_of(p, 1), rows, step * 8, to + 32 * kStripRows);
  }
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int, const uint2*,
                                               __half2 (&out)[8]) {
    const uint2 high = strip_8(strips + 32 * kStripRows, row * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 q = nibbles(strips, row, part, i);
      const uint32_t h = (i == 0 ? high.x : high.y) >> (8 * part);
      bytes_to_half<16>(q.x | spread_bits(h) << 4, out + 4 * i);
      bytes_to_half<16>(q.y | spread_bits(h >> 4) << 4, out + 4 * i + 2);
    }
  }
};

// Values by code from a table of 16 bytes, 128 standing for 0.
__device__ __forceinline__ uint32_t look_up(uint32_t nibbles, uint4 table) {
  const uint32_t near = nibbles | nibbles >> 4;
  const uint32_t picks = __byte_perm(near, 0, 0x4420);  // a code per four bits
  const uint32_t low = __byte_perm(table.x, table.y, picks & 0x7777U);
  const uint32_t high = __byte_perm(table.z, table.w, picks & 0x7777U);
  const uint32_t use_high = (nibbles >> 3 & 0x01010101U) * 255U;
  return (low & ~use_high) | (high & use_high);
}
struct TableStrips : NibbleStrips<1> {
  static __device__ __forceinline__ void look_up_codes(const uint8_t* strips, int row, int part, uint4 table,
                                                       __half2 (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 q = nibbles(strips, row, part, i);
      bytes_to_half<128>(look_up(q.x, table), out + 4 * i);
      bytes_to_half<128>(look_up(q.y, table), out + 4 * i + 2);
    }
  }
};
template <>
struct Strips<Codec::kIQ4_NL> : TableStrips {
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int, const uint2*,
                                               __half2 (&out)[8]) {
    look_up_codes(strips, row, part, make_uint4(0x3F2D1801U, 0x766A5D4FU, 0xA6998D81U, 0xF1D9C5B5U), out);
  }
};
template <>
struct Strips<Codec::kMXFP4> : TableStrips {
  static __device__ __forceinline__ uint32_t copy_scales(const GemmParams& p, const StripRows& rows, int step,
                                                         int i, uint32_t to) {
    return copy_half_word(plane_of(p, 1), rows, i, step * 2, to);
  }
  struct Scales {
    uint32_t e;
    __device__ __forceinline__ Scales(const uint8_t* stored, uint32_t upper, const uint8_t*, int)
        : e(half_word(*reinterpret_cast<const uint32_t*>(stored), upper)) {}
    __device__ __forceinline__ float2 value(int g) const { return {e8m0_half_of(e >> (8 * g) & 255U), 0.0F}; }
  };
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int, const uint2*,
                                               __half2 (&out)[8]) {
    look_up_codes(strips, row, part, make_uint4(0x83828180U, 0x8C888684U, 0x7D7E7F80U, 0x74787A7CU), out);
  }
};

// {d, dmin, scales and minima} of 256 inputs.
template <int kPlane>
struct SuperScales {
  static constexpr int kScaleBytes = 16;
  static __device__ __forceinline__ uint32_t copy_scales(const GemmParams& p, const StripRows& rows, int step,
                                                         int i, uint32_t to) {
    copy_scale<16>(plane_of(p, kPlane), rows, i, step / 4 * 16, to);
    return static_cast<uint32_t>(step % 4 * 2);
  }
  struct Scales {
    uint4 s;
    int first;
    __device__ __forceinline__ Scales(const uint8_t* stored, uint32_t group, const uint8_t*, int)
        : s(*reinterpret_cast<const uint4*>(stored)), first(static_cast<int>(group)) {}
    __device__ __forceinline__ float2 value(int g) const { return k_scales(s, first + g); }
  };
};

template <>
struct Strips<Codec::kQ4_K> : SuperScales<1> {
  static constexpr bool kFits = true, kMin = true;
  static constexpr int kStripBytes = 32, kGroup = 32;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<32>(plane_of(p, 0), rows, step * 32, to);
  }
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int, const uint2*,
                                               __half2 (&out)[8]) {
    const uint2 q = strip_8(strips, row * 32 + 8 * part);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bytes_to_half<0>(q.x >> (4 * i) & 0x0F0F0F0FU, out + 4 * i);
      bytes_to_half<0>(q.y >> (4 * i) & 0x0F0F0F0FU, out + 4 * i + 2);
    }
  }
};

template <>
struct Strips<Codec::kQ5_K> : SuperScales<2> {
  static constexpr bool kFits = true, kMin = true;
  static constexpr int kStripBytes = 64, kGroup = 32;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<32>(plane_of(p, 0), rows, step * 32, to);
    copy_strip<32>(plane_of(p, 1), rows, step / 4 * 32, to + 32 * kStripRows);
  }
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int step,
                                               const uint2*, __half2 (&out)[8]) {
    const uint2 q = strip_8(strips, row * 32 + 8 * part);
    const uint2 h = strip_8(strips + 32 * kStripRows, row * 32 + 8 * part);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int bit = step % 4 * 2 + i;
      bytes_to_half<0>((q.x >> (4 * i) & 0x0F0F0F0FU) | (h.x >> bit & 0x01010101U) << 4, out + 4 * i);
      bytes_to_half<0>((q.y >> (4 * i) & 0x0F0F0F0FU) | (h.y >> bit & 0x01010101U) << 4, out + 4 * i + 2);
    }
  }
};

template <>
struct Strips<Codec::kQ6_K> {
  static constexpr bool kFits = true, kMin = false;
  static constexpr int kStripBytes = 96, kGroup = 16;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<32>(plane_of(p, 0), rows, step / 2 * 64, to);
    copy_strip<32>(plane_of(p, 0), rows, step / 2 * 64 + 32, to + 32 * kStripRows);
    copy_strip<32>(plane_of(p, 1), rows, step / 2 * 32, to + 64 * kStripRows);
  }
  static constexpr int kScaleBytes = 8;
  static __device__ __forceinline__ uint32_t copy_scales(const GemmParams& p, const StripRows& rows, int step,
                                                         int i, uint32_t to) {
    copy_scale<4>(plane_of(p, 2), rows, i, step * 4, to);
    return copy_half_word(plane_of(p, 3), rows, i, step / 4 * 2, to + 4);
  }
  struct Scales {
    uint32_t s;
    float d;
    __device__ __forceinline__ Scales(const uint8_t* stored, uint32_t upper, const uint8_t*, int) {
      const uint2 both = *reinterpret_cast<const uint2*>(stored);
      s = both.x, d = f16_value(static_cast<uint16_t>(half_word(both.y, upper)));
    }
    __device__ __forceinline__ float2 value(int g) const {
      return {d * static_cast<float>(static_cast<int8_t>(byte_of(s, g))), 0.0F};
    }
  };
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int step,
                                               const uint2*, __half2 (&out)[8]) {
    const uint2 h = strip_8(strips + 64 * kStripRows, row * 32 + 8 * part);
    const int shift = step % 2 * 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 l = strip_8(strips + i * 32 * kStripRows, row * 32 + 8 * part);
      const int bit = shift + 2 * i;
      bytes_to_half<32>((l.x >> shift & 0x0F0F0F0FU) | (h.x >> bit & 0x03030303U) << 4, out + 4 * i);
      bytes_to_half<32>((l.y >> shift & 0x0F0F0F0FU) | (h.y >> bit & 0x03030303U) << 4, out + 4 * i + 2);
    }
  }
};

template <>
struct Strips<Codec::kQ2_K> {
  static constexpr bool kFits = true, kMin = true;
  static constexpr int kStripBytes = 32, kGroup = 16;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<32>(plane_of(p, 0), rows, step / 2 * 32, to);
  }
  static constexpr int kScaleBytes = 8;
  static __device__ __forceinline__ uint32_t copy_scales(const GemmParams& p, const StripRows& rows, int step,
                                                         int i, uint32_t to) {
    copy_scale<4>(plane_of(p, 1), rows, i, step * 4, to);
    copy_scale<4>(plane_of(p, 2), rows, i, step / 4 * 4, to + 4);
    return 0;
  }
  struct Scales {
    uint32_t s, d;
    __device__ __forceinline__ Scales(const uint8_t* stored, uint32_t, const uint8_t*, int) {
      const uint2 both = *reinterpret_cast<const uint2*>(stored);
      s = both.x, d = both.y;
    }
    __device__ __forceinline__ float2 value(int g) const {
      const int pair = byte_of(s, g);
      return {f16_value(static_cast<uint16_t>(d)) * static_cast<float>(pair & 15),
              f16_value(static_cast<uint16_t>(d >> 16)) * static_cast<float>(pair >> 4)};
    }
  };
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int step,
                                               const uint2*, __half2 (&out)[8]) {
    const uint2 q = strip_8(strips, row * 32 + 8 * part);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int shift = step % 2 * 4 + 2 * i;
      bytes_to_half<0>(q.x >> shift & 0x03030303U, out + 4 * i);
      bytes_to_half<0>(q.y >> shift & 0x03030303U, out + 4 * i + 2);
    }
  }
};

template <>
struct Strips<Codec::kIQ2_XXS> {
  static constexpr bool kFits = true, kMin = false;
  static constexpr int kStripBytes = 16, kGroup = 32;
  static __device__ __forceinline__ void copy(const GemmParams& p, const StripRows& rows, int step,
                                              uint32_t to) {
    copy_strip<16>(plane_of(p, 0), rows, step * 16, to);
  }
  static constexpr int kScaleBytes = 4;
  static __device__ __forceinline__ uint32_t copy_scales(const GemmParams& p, const StripRows& rows, int step,
                                                         int i, uint32_t to) {
    return copy_half_word(plane_of(p, 1), rows, i, step / 4 * 2, to);
  }
  struct Scales {  // four bits each are the codes'
    uint32_t a, b;
    float d;
    __device__ __forceinline__ Scales(const uint8_t* stored, uint32_t upper, const uint8_t* strips, int row) {
      const uint4 q = *reinterpret_cast<const uint4*>(strips + row * 16);
      a = q.y >> 28, b = q.w >> 28;
      d = f16_value(static_cast<uint16_t>(half_word(*reinterpret_cast<const uint32_t*>(stored), upper)));
    }
    __device__ __forceinline__ float2 value(int g) const {
      return {d * (0.5F + static_cast<float>(g == 0 ? a : b)) * 0.25F, 0.0F};
    }
  };
  // The part's eight inputs are an entry of the codebook, 1024 + coordinate being f16 again; their signs are
  // bits 15 and 31 of a product with two powers of two.
  static __device__ __forceinline__ void codes(const uint8_t* strips, int row, int part, int,
                                               const uint2* book, __half2 (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 q = strip_8(strips, row * 16 + 8 * i);
      const uint2 entry = book[q.x >> (8 * part) & 255U];
      const uint32_t signs = signs_of(q.y >> (7 * part) & 127U);
      bytes_to_half<0>(entry.x, out + 4 * i);
      bytes_to_half<0>(entry.y, out + 4 * i + 2);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t flips = signs * ((1U << (15 - 2 * j)) + (1U << (30 - 2 * j))) & 0x80008000U;
        out[4 * i + j] = as_half2(bits_of(out[4 * i + j]) ^ flips);
      }
    }
  }
};

}  // namespace synod::cuda
