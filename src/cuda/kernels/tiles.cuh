// Tiles of 16 stored rows for int8 tensor cores (mma.m16n8k32). A unit is 16 rows by 256 inputs: `Units`
// copies its codes and scales into a stage of shared memory, `multiply_unit` adds its products with the
// digits of up to 4 * kGroups activation rows. An activation row takes two of the eight columns, one per
// digit, so a lane (g = lane / 4, t = lane % 4) ends up with rows g and g + 8 of token t. The order of inputs
// within a block of 32 is free as long as both operands agree: with kWide lane t holds inputs 8t to 8t + 7,
// otherwise 4t to 4t + 3 and 16 + 4t to 16 + 4t + 3. Pitches of stages keep a warp's reads on different
// banks.
#pragma once

#include "cuda/kernels/decode.cuh"
#include "cuda/kernels/fetch.cuh"

namespace synod::cuda {

inline constexpr int kUnitInputs = 256, kUnitBlocks = kUnitInputs / 32;

// Unsigned or signed codes times signed digits; the accumulators start at zero.
template <bool kSigned>
__device__ __forceinline__ void multiply_32(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
  }
}
__device__ __forceinline__ void multiply_16(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}
// A sum over both digits.
__device__ __forceinline__ float whole(int high, int low) { return static_cast<float>(254 * high + low); }

template <typename T>
__device__ __forceinline__ T& at(uint8_t* p) {
  return *reinterpret_cast<T*>(p);
}

// A plane of a unit: kPieces pieces of kSize bytes per row, in rows of kPitch bytes at kAt of a stage. kHalf:
// the f16 of each row, as the aligned word around it and, kHalvesAt further on, how far to shift it.
template <int kSize, int kPieces, int kPitch, int kAt>
struct Plane {
  static constexpr int kRowsAtOnce = kPieces > 1 ? 32 / kPieces : kUnitRows;
  static constexpr int kRounds = kUnitRows / kRowsAtOnce;
  const uint8_t* from;  // the lane's piece of unit 0
  uint32_t step;        // to its row of the next round

  __device__ __forceinline__ void set(const uint8_t* plane, int64_t stride, uint32_t row, int lane) {
    const int r = lane / kPieces, piece = lane % kPieces;
    const auto row_bytes = static_cast<uint32_t>(stride);
    from = plane + static_cast<uint64_t>(row + static_cast<uint32_t>(r)) * row_bytes + piece * kSize;
    step = kRowsAtOnce * row_bytes;
  }
  // `n_blocks` of the unit's eight exist.
  __device__ __forceinline__ void fetch(uint32_t stage, int unit, int n_blocks, int lane) const {
    const int r = lane / kPieces, piece = lane % kPieces;
    if (r >= kRowsAtOnce || piece * kUnitBlocks >= n_blocks * kPieces) return;
    const uint8_t* p = from + static_cast<uint32_t>(unit) * (kPieces * kSize);
    const uint32_t to = stage + static_cast<uint32_t>(kAt + r * kPitch + piece * kSize);
#pragma unroll
    for (int j = 0; j < kRounds; ++j) {
      if constexpr (kSize == 16) {
        fetch_16(to + j * kRowsAtOnce * kPitch, p);
      } else {
        fetch_4(to + j * kRowsAtOnce * kPitch, p);
      }
      p += step;
    }
  }
};

inline constexpr int kHalvesBytes = 8 * kUnitRows;
template <int kAt>
struct HalfPlane {
  const uint8_t* from;
  __device__ __forceinline__ void set(const uint8_t* plane, int64_t stride, uint32_t row, int lane) {
    from = plane + static_cast<uint64_t>(row + static_cast<uint32_t>(lane)) * static_cast<uint32_t>(stride);
  }
  __device__ __forceinline__ void fetch(uint32_t stage, int unit, int, int lane) const {
    if (lane >= kUnitRows) return;
    const auto p = reinterpret_cast<uintptr_t>(from + 2 * unit);
    const uint32_t to = stage + static_cast<uint32_t>(kAt + 4 * lane);
    fetch_4(to, reinterpret_cast<const uint8_t*>(p & ~uintptr_t{3}));
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + 4 * kUnitRows), "r"((p & 2) != 0 ? 16 : 0) : "memory");
  }
};

// The planes of a codec's tile, in the order of DeviceMatrix. Rows past the end of a matrix are read too and
// count for nothing: what follows a matrix on the device is readable (WeightStore).
template <typename... kPlanes>
struct Planes {
  __device__ __forceinline__ void set_from(const DeviceMatrix&, int, uint32_t, int) {}
  __device__ __forceinline__ void fetch(uint32_t, int, int, int) const {}
};
template <typename First, typename... Rest>
struct Planes<First, Rest...> {
  First first;
  Planes<Rest...> rest;
  __device__ __forceinline__ void set(const DeviceMatrix& m, uint32_t row, int lane) {
    set_from(m, 0, row, lane);
  }
  __device__ __forceinline__ void set_from(const DeviceMatrix& m, int i, uint32_t row, int lane) {
    first.set(m.plane[i], m.stride[i], row, lane);
    rest.set_from(m, i + 1, row, lane);
  }
  __device__ __forceinline__ void fetch(uint32_t stage, int unit, int n_blocks, int lane) const {
    first.fetch(stage, unit, n_blocks, lane);
    rest.fetch(stage, unit, n_blocks, lane);
  }
};

__device__ __forceinline__ float fetched_half(uint8_t* from, int r) {
  const uint32_t shift = at<uint32_t>(from + 4 * kUnitRows + 4 * r);
  return f16_value(static_cast<uint16_t>(at<uint32_t>(from + 4 * r) >> shift));
}

// What a lane needs of one block of activations: its piece of a digit, and {scale, scale * sum} or {scale, -,
// scale * sum of the first 16, scale * sum of the last 16} of its token.
template <bool kWide, int kMeta>
struct XBlock {
  static constexpr int kPiece = kWide ? 8 : 4;  // bytes from one lane to the next
  uint32_t b0, b1;
  float s, sum, first, second;
  __device__ __forceinline__ void load_from(const uint8_t* digit, const uint8_t* meta, int block) {
    if constexpr (kWide) {
      const uint2 v = *reinterpret_cast<const uint2*>(digit + 32 * block);
      b0 = v.x, b1 = v.y;
    } else {
      b0 = *reinterpret_cast<const uint32_t*>(digit + 32 * block);
      b1 = *reinterpret_cast<const uint32_t*>(digit + 32 * block + 16);
    }
    const uint8_t* m = meta + 16 * block;
    if constexpr (kMeta == 1) {
      s = *reinterpret_cast<const float*>(m);
    } else if constexpr (kMeta == 2) {
      const float2 v = *reinterpret_cast<const float2*>(m);
      s = v.x, sum = v.y;
    } else {
      const float4 v = *reinterpret_cast<const float4*>(m);
      s = v.x, sum = v.y, first = v.z, second = v.w;
    }
  }
};

// Per codec: bytes of a stage and of a table (per warp), the form of activations, and
//   kWholeUnits: inputs are a multiple of 256
//   Units: what a stage holds
//   prepare(stage, table, lane)   scales as floats; between two barriers of the warp
//   load_from(stage, table, lane) what a lane keeps for the unit
//   block(b)                      the operand and scales of block b, b ascending
//   add(x, acc)                   products with one group of tokens
template <Codec kCodec>
struct Tile;

// A byte of `v` times f, rounded once: the byte is made a float of exponent 2^23, whose share is taken off
// again.
__device__ __forceinline__ float byte_times(uint32_t v, int i, float f, float less) {
  return fmaf(f, __uint_as_float(__byte_perm(v, 0x4b000000U, 0x7650U | static_cast<uint32_t>(i))), less);
}
inline constexpr float kByteBase = 8388608.0F;

// Scales and minima of Q4_K and Q5_K: float2 [8 blocks][16 rows].
struct KTable {
  static constexpr int kTableBytes = 8 * kUnitBlocks * kUnitRows;
  // `odd` multiplies the scales of odd blocks.
  static __device__ __forceinline__ void write(uint8_t* table, uint8_t* scales, float odd, int lane) {
    const int r = lane % 16;
    const bool upper = lane >= 16;  // blocks 4 to 7
    const uint4 s = at<uint4>(scales + 16 * r);
    const float d = f16_value(static_cast<uint16_t>(s.x)), dmin = f16_value(static_cast<uint16_t>(s.x >> 16));
    const uint32_t scale = upper ? (s.w & 0x0f0f0f0fU) | (s.y >> 2 & 0x30303030U) : s.y & 0x3f3f3f3fU;
    const uint32_t min = upper ? (s.w >> 4 & 0x0f0f0f0fU) | (s.z >> 2 & 0x30303030U) : s.z & 0x3f3f3f3fU;
    const float factor[2] = {d, d * odd};
    const float less[2] = {-kByteBase * factor[0], -kByteBase * factor[1]}, min_less = -kByteBase * dmin;
    uint8_t* to = table + (upper ? 4 * 8 * kUnitRows : 0) + 8 * r;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at<float2>(to + i * 8 * kUnitRows) =
          make_float2(byte_times(scale, i, factor[i % 2], less[i % 2]), byte_times(min, i, dmin, min_less));
    }
  }
};

template <>
struct Tile<Codec::kQ4_K> {
  static constexpr bool kWholeUnits = true;
  static constexpr int kPitch = 160, kScales = kUnitRows * kPitch, kStageBytes = kScales + 256;
  static constexpr int kTableBytes = KTable::kTableBytes;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<16, 1, 16, kScales>>;
  using X = XBlock<true, 2>;
  uint8_t *codes, *table;
  uint2 w[2];
  uint32_t a[4];
  float2 f[2];
  // Codes of odd blocks stay in the high nibbles.
  static __device__ __forceinline__ void prepare(uint8_t* stage, uint8_t* table, int lane) {
    KTable::write(table, stage + kScales, 1.0F / 16.0F, lane);
  }
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t* scales, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 8;
    table = scales + lane / 4 * 8;
  }
  __device__ __forceinline__ void block(int b) {
    if (b % 2 == 0) w[0] = at<uint2>(codes + b * 16), w[1] = at<uint2>(codes + 8 * kPitch + b * 16);
    const uint32_t mask = b % 2 == 0 ? 0x0f0f0f0fU : 0xf0f0f0f0U;
    a[0] = w[0].x & mask, a[1] = w[1].x & mask, a[2] = w[0].y & mask, a[3] = w[1].y & mask;
    f[0] = at<float2>(table + b * 128), f[1] = at<float2>(table + b * 128 + 64);
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4];
    multiply_32<false>(c, a, x.b0, x.b1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      acc[i] = fmaf(f[i].x, x.s * whole(c[2 * i], c[2 * i + 1]), acc[i]);
      acc[i] = fmaf(-f[i].y, x.sum, acc[i]);
    }
  }
};

template <>
struct Tile<Codec::kQ5_K> {
  static constexpr bool kWholeUnits = true;
  static constexpr int kPitch = 160, kHigh = kUnitRows * kPitch, kScales = kHigh + 32 * kUnitRows;
  static constexpr int kStageBytes = kScales + 256, kTableBytes = KTable::kTableBytes;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<16, 2, 32, kHigh>, Plane<16, 1, 16, kScales>>;
  using X = XBlock<true, 2>;
  uint8_t *codes, *table;
  uint2 w[2], h[2];
  uint32_t a[4];
  float2 f[2];
  static __device__ __forceinline__ void prepare(uint8_t* stage, uint8_t* table, int lane) {
    KTable::write(table, stage + kScales, 1.0F, lane);
  }
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t* scales, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 8;
    table = scales + lane / 4 * 8;
    uint8_t* high = stage + kHigh + lane * 8;  // row lane / 4, byte 8 * (lane % 4)
    h[0] = at<uint2>(high), h[1] = at<uint2>(high + 8 * 32);
  }
  __device__ __forceinline__ void block(int b) {
    if (b % 2 == 0) w[0] = at<uint2>(codes + b * 16), w[1] = at<uint2>(codes + 8 * kPitch + b * 16);
    const auto code = [&](uint32_t v, uint32_t fifth) {
      const uint32_t low = (b % 2 == 0 ? v : v >> 4) & 0x0f0f0f0fU;
      return low | ((b <= 4 ? fifth << (4 - b) : fifth >> (b - 4)) & 0x10101010U);
    };
    a[0] = code(w[0].x, h[0].x), a[1] = code(w[1].x, h[1].x), a[2] = code(w[0].y, h[0].y);
    a[3] = code(w[1].y, h[1].y);
    f[0] = at<float2>(table + b * 128), f[1] = at<float2>(table + b * 128 + 64);
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4];
    multiply_32<false>(c, a, x.b0, x.b1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      acc[i] = fmaf(f[i].x, x.s * whole(c[2 * i], c[2 * i + 1]), acc[i]);
      acc[i] = fmaf(-f[i].y, x.sum, acc[i]);
    }
  }
};

template <>
struct Tile<Codec::kQ6_K> {
  static constexpr bool kWholeUnits = true;
  static constexpr int kPitch = 144, kHighPitch = 80, kHigh = kUnitRows * kPitch;
  static constexpr int kScales = kHigh + kUnitRows * kHighPitch, kD = kScales + 256,
                       kStageBytes = kD + kHalvesBytes;
  static constexpr int kTableBytes = 8 * kUnitBlocks * kUnitRows;  // float2: both scales of a block
  using X = XBlock<false, 4>;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<16, 4, kHighPitch, kHigh>, Plane<16, 1, 16, kScales>,
                       HalfPlane<kD>>;
  uint8_t *codes, *high, *table;
  uint32_t w[2][2][2], h[2][2];  // [run][half][row], [half][row]
  uint32_t a[4];
  float2 f[2];
  static __device__ __forceinline__ void prepare(uint8_t* stage, uint8_t* table, int lane) {
    const int r = lane % 16;
    const uint2 scales = at<uint2>(stage + kScales + 16 * r + lane / 16 * 8);
    const float d = fetched_half(stage + kD, r);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = (i < 2 ? scales.x : scales.y) >> (16 * (i % 2));
      const auto first = static_cast<int8_t>(pair), second = static_cast<int8_t>(pair >> 8);
      at<float2>(table + 8 * ((lane / 16 * 4 + i) * kUnitRows + r)) =
          make_float2(d * static_cast<float>(first), d * static_cast<float>(second));
    }
  }
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t* scales, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 4;
    high = stage + kHigh + lane / 4 * kHighPitch + lane % 4 * 4;
    table = scales + lane / 4 * 8;
  }
  __device__ __forceinline__ void block(int b) {
    const int n = b / 4, j = b % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (j < 2) w[j][half][row] = at<uint32_t>(codes + n * 64 + j * 32 + half * 16 + row * 8 * kPitch);
        if (j == 0) h[half][row] = at<uint32_t>(high + n * 32 + half * 16 + row * 8 * kHighPitch);
        const uint32_t low = (j < 2 ? w[j % 2][half][row] : w[j % 2][half][row] >> 4) & 0x0f0f0f0fU;
        const uint32_t v = h[half][row];
        const uint32_t top = (j == 0 ? v << 4 : j == 1 ? v << 2 : j == 2 ? v : v >> 2) & 0x30303030U;
        a[2 * half + row] = low | top;
      }
    }
    f[0] = at<float2>(table + b * 128), f[1] = at<float2>(table + b * 128 + 64);
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4], d[4];
    multiply_16(c, a[0], a[1], x.b0);
    multiply_16(d, a[2], a[3], x.b1);
    const float first = -32.0F * x.first, second = -32.0F * x.second;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      acc[i] = fmaf(f[i].x, fmaf(x.s, whole(c[2 * i], c[2 * i + 1]), first), acc[i]);
      acc[i] = fmaf(f[i].y, fmaf(x.s, whole(d[2 * i], d[2 * i + 1]), second), acc[i]);
    }
  }
};

template <>
struct Tile<Codec::kQ2_K> {
  static constexpr bool kWholeUnits = true;
  static constexpr int kPitch = 80, kScales = kUnitRows * kPitch, kD = kScales + 256, kStageBytes = kD + 64;
  static constexpr int kTableBytes = 16 * kUnitBlocks * kUnitRows;  // float4: two scales, two minima
  using X = XBlock<false, 4>;
  using Units = Planes<Plane<16, 4, kPitch, 0>, Plane<16, 1, 16, kScales>, Plane<4, 1, 4, kD>>;
  uint8_t *codes, *table;
  uint32_t w[2][2];  // [half][row]
  uint32_t a[4];
  float4 f[2];
  // Block j of a run keeps its codes at bit 2j.
  static __device__ __forceinline__ void prepare(uint8_t* stage, uint8_t* table, int lane) {
    const int r = lane % 16;
    const uint2 scales = at<uint2>(stage + kScales + 16 * r + lane / 16 * 8);
    const uint32_t d = at<uint32_t>(stage + kD + 4 * r);
    const float scale = f16_value(static_cast<uint16_t>(d)), min = f16_value(static_cast<uint16_t>(d >> 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = (i < 2 ? scales.x : scales.y) >> (16 * (i % 2));
      const float part = scale / static_cast<float>(1 << (2 * i));
      at<float4>(table + 16 * ((lane / 16 * 4 + i) * kUnitRows + r)) =
          make_float4(part * static_cast<float>(pair & 15U), part * static_cast<float>(pair >> 8 & 15U),
                      min * static_cast<float>(pair >> 4 & 15U), min * static_cast<float>(pair >> 12 & 15U));
    }
  }
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t* scales, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 4;
    table = scales + lane / 4 * 16;
  }
  __device__ __forceinline__ void block(int b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (b % 4 == 0) w[half][row] = at<uint32_t>(codes + b / 4 * 32 + half * 16 + row * 8 * kPitch);
        a[2 * half + row] = w[half][row] & 0x03030303U << (2 * (b % 4));
      }
    }
    f[0] = at<float4>(table + b * 256), f[1] = at<float4>(table + b * 256 + 128);
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4], d[4];
    multiply_16(c, a[0], a[1], x.b0);
    multiply_16(d, a[2], a[3], x.b1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float both = fmaf(f[i].x, whole(c[2 * i], c[2 * i + 1]), f[i].y * whole(d[2 * i], d[2 * i + 1]));
      acc[i] = fmaf(x.s, both, acc[i]);
      acc[i] = fmaf(-f[i].z, x.first, acc[i]);
      acc[i] = fmaf(-f[i].w, x.second, acc[i]);
    }
  }
};

// One f16 scale per block of 32.
struct BlockScales {
  uint4 d[2];
  __device__ __forceinline__ void load_from(uint8_t* scales, int lane) {
    d[0] = at<uint4>(scales + lane / 4 * 16), d[1] = at<uint4>(scales + (lane / 4 + 8) * 16);
  }
  __device__ __forceinline__ float of(int row, int b) const {
    return f16_value(static_cast<uint16_t>(word(d[row], b / 2) >> (16 * (b % 2))));
  }
};

template <>
struct Tile<Codec::kQ8_0> {
  static constexpr bool kWholeUnits = false;
  static constexpr int kPitch = 288, kScales = kUnitRows * kPitch, kStageBytes = kScales + 256,
                       kTableBytes = 0;
  using Units = Planes<Plane<16, 16, kPitch, 0>, Plane<4, 4, 16, kScales>>;
  using X = XBlock<true, 1>;
  uint8_t* codes;
  BlockScales scales;
  uint32_t a[4];
  float f[2];
  static __device__ __forceinline__ void prepare(uint8_t*, uint8_t*, int) {}
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t*, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 8;
    scales.load_from(stage + kScales, lane);
  }
  __device__ __forceinline__ void block(int b) {
    const uint2 w = at<uint2>(codes + 32 * b), v = at<uint2>(codes + 32 * b + 8 * kPitch);
    a[0] = w.x, a[1] = v.x, a[2] = w.y, a[3] = v.y;
    f[0] = scales.of(0, b), f[1] = scales.of(1, b);
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4];
    multiply_32<true>(c, a, x.b0, x.b1);
#pragma unroll
    for (int i = 0; i < 2; ++i) acc[i] = fmaf(f[i] * x.s, whole(c[2 * i], c[2 * i + 1]), acc[i]);
  }
};

// Blocks of 32 nibbles: value i in the low half of byte i, value 16 + i in the high half.
struct NibbleTile {
  static constexpr int kPitch = 144, kScales = kUnitRows * kPitch, kTableBytes = 0;
  uint8_t* codes;
  BlockScales scales;
  uint32_t a[4];
  float f[2];
  static __device__ __forceinline__ void prepare(uint8_t*, uint8_t*, int) {}
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t*, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 4;
    scales.load_from(stage + kScales, lane);
  }
  __device__ __forceinline__ void load_block(int b) {
    const uint32_t w = at<uint32_t>(codes + 16 * b), v = at<uint32_t>(codes + 16 * b + 8 * kPitch);
    a[0] = w & 0x0f0f0f0fU, a[1] = v & 0x0f0f0f0fU, a[2] = w >> 4 & 0x0f0f0f0fU, a[3] = v >> 4 & 0x0f0f0f0fU;
    f[0] = scales.of(0, b), f[1] = scales.of(1, b);
  }
  // Codes less `offset`, by the sum of the activations.
  template <typename X>
  __device__ __forceinline__ void add_less(const X& x, float offset, float (&acc)[2]) const {
    int c[4];
    multiply_32<false>(c, a, x.b0, x.b1);
    const float less = -offset * x.sum;
#pragma unroll
    for (int i = 0; i < 2; ++i) acc[i] = fmaf(f[i], fmaf(x.s, whole(c[2 * i], c[2 * i + 1]), less), acc[i]);
  }
};

template <>
struct Tile<Codec::kQ4_0> : NibbleTile {
  static constexpr bool kWholeUnits = false;
  static constexpr int kStageBytes = kScales + 256;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<4, 4, 16, kScales>>;
  using X = XBlock<false, 2>;
  __device__ __forceinline__ void block(int b) { load_block(b); }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const { add_less(x, 8.0F, acc); }
};

template <>
struct Tile<Codec::kQ5_0> : NibbleTile {
  static constexpr bool kWholeUnits = false;
  static constexpr int kHigh = kScales + 256, kStageBytes = kHigh + 32 * kUnitRows;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<4, 8, 32, kHigh>, Plane<4, 4, 16, kScales>>;
  using X = XBlock<false, 2>;
  uint8_t* high;
  int shift;
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t* table, int lane) {
    NibbleTile::load_from(stage, table, lane);
    high = stage + kHigh + lane / 4 * 32;
    shift = lane % 4 * 4;
  }
  __device__ __forceinline__ void block(int b) {
    load_block(b);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t h = at<uint32_t>(high + 4 * b + row * 8 * 32) >> shift;
      // Bits 0 to 3 as bit 4 of four bytes.
      a[row] |= (h & 15U) * 0x02040810U & 0x10101010U;
      a[2 + row] |= (h >> 16 & 15U) * 0x02040810U & 0x10101010U;
    }
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const { add_less(x, 16.0F, acc); }
};

// Nibbles that index a table of 16 signed values, four bytes per word.
template <uint32_t kT0, uint32_t kT1, uint32_t kT2, uint32_t kT3>
struct TableTile : NibbleTile {
  using X = XBlock<false, 1>;
  static __device__ __forceinline__ uint32_t four(uint32_t v) {  // nibbles 0 to 3 of v
    const uint32_t low = __byte_perm(kT0, kT1, v & 0x7777U), high = __byte_perm(kT2, kT3, v & 0x7777U);
    return __byte_perm(low, high, 0x3210U | (v & 0x8888U) >> 1);
  }
  __device__ __forceinline__ void load_codes(int b) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t w = at<uint32_t>(codes + 16 * b + row * 8 * kPitch);
      const uint32_t low = four(w), high = four(w >> 16);
      a[row] = __byte_perm(low, high, 0x6420U);
      a[2 + row] = __byte_perm(low, high, 0x7531U);
    }
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4];
    multiply_32<true>(c, a, x.b0, x.b1);
#pragma unroll
    for (int i = 0; i < 2; ++i) acc[i] = fmaf(f[i] * x.s, whole(c[2 * i], c[2 * i + 1]), acc[i]);
  }
};

template <>
struct Tile<Codec::kIQ4_NL> : TableTile<0xBFAD9881U, 0xF6EADDCFU, 0x26190D01U, 0x71594535U> {
  static constexpr bool kWholeUnits = false;
  static constexpr int kStageBytes = kScales + 256;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<4, 4, 16, kScales>>;
  __device__ __forceinline__ void block(int b) {
    load_codes(b);
    f[0] = scales.of(0, b), f[1] = scales.of(1, b);
  }
};

// Twice the values: 0 1 2 3 | 4 6 8 12 | -0 -1 -2 -3 | -4 -6 -8 -12
template <>
struct Tile<Codec::kMXFP4> : TableTile<0x03020100U, 0x0C080604U, 0xFDFEFF00U, 0xF4F8FAFCU> {
  static constexpr bool kWholeUnits = false;
  static constexpr int kStageBytes = kScales + 128;
  using Units = Planes<Plane<16, 8, kPitch, 0>, Plane<4, 2, 8, kScales>>;
  uint2 exponents[2];
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t*, int lane) {
    codes = stage + lane / 4 * kPitch + lane % 4 * 4;
    exponents[0] = at<uint2>(stage + kScales + lane / 4 * 8);
    exponents[1] = at<uint2>(stage + kScales + (lane / 4 + 8) * 8);
  }
  __device__ __forceinline__ void block(int b) {
    load_codes(b);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      f[i] = e8m0_half_of(static_cast<uint8_t>((b < 4 ? exponents[i].x : exponents[i].y) >> (8 * (b % 4))));
    }
  }
};

// Lane t takes the t-th entry of a block: eight values by an index into the codebook and seven sign bits.
template <>
struct Tile<Codec::kIQ2_XXS> {
  static constexpr bool kWholeUnits = true;
  static constexpr int kPitch = 80, kD = kUnitRows * kPitch, kStageBytes = kD + kHalvesBytes, kTableBytes = 0;
  using Units = Planes<Plane<16, 4, kPitch, 0>, HalfPlane<kD>>;
  using X = XBlock<true, 1>;
  uint8_t* codes;
  const uint2* grid;  // in shared memory; set by the kernel
  int t;
  float d[2];
  uint32_t a[4];
  float f[2];
  static __device__ __forceinline__ void prepare(uint8_t*, uint8_t*, int) {}
  __device__ __forceinline__ void load_from(uint8_t* stage, uint8_t*, int lane) {
    codes = stage + lane / 4 * kPitch;
    t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) d[i] = 0.25F * fetched_half(stage + kD, lane / 4 + 8 * i);
  }
  // A coordinate is at most 43, so its complement plus one does not carry into the next byte.
  static __device__ __forceinline__ uint32_t with_signs(uint32_t e, uint32_t four_bits) {
    const uint32_t minus = (four_bits & 15U) * 0x00204081U & 0x01010101U;
    return (e ^ minus * 255U) + minus;
  }
  __device__ __forceinline__ void block(int b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 q = at<uint2>(codes + 8 * b + i * 8 * kPitch);
      const uint2 e = grid[q.x >> (8 * t) & 255U];
      const uint32_t signs = signs_of(q.y >> (7 * t) & 127U);
      a[i] = with_signs(e.x, signs);
      a[2 + i] = with_signs(e.y, signs >> 4);
      f[i] = d[i] * (0.5F + static_cast<float>(q.y >> 28));
    }
  }
  __device__ __forceinline__ void add(const X& x, float (&acc)[2]) const {
    int c[4];
    multiply_32<true>(c, a, x.b0, x.b1);
#pragma unroll
    for (int i = 0; i < 2; ++i) acc[i] = fmaf(f[i] * x.s, whole(c[2 * i], c[2 * i + 1]), acc[i]);
  }
};

// A unit of an activation row in shared memory: high digits, low digits 32 bytes further on the banks,
// {scale, sums} per block; the next row is 64 bytes further on the banks.
inline constexpr int kXLow = kUnitInputs + 32, kXMeta = kXLow + kUnitInputs,
                     kXBytes = kXMeta + 16 * kUnitBlocks + 32;
static_assert(kXBytes % 128 == 64);

// Adds the products of one unit with groups of four tokens. `digit` and `meta` are the lane's own.
template <Codec kCodec, int kGroups>
__device__ __forceinline__ void multiply_unit(Tile<kCodec>& w, const uint8_t* digit, const uint8_t* meta,
                                              int n_blocks, int n_groups, float (&acc)[kGroups][2]) {
#pragma unroll
  for (int b = 0; b < kUnitBlocks; ++b) {
    if (!Tile<kCodec>::kWholeUnits && b >= n_blocks) break;
    w.block(b);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (kGroups > 1 && i >= n_groups) break;
      typename Tile<kCodec>::X x;
      x.load_from(digit + 4 * i * kXBytes, meta + 4 * i * kXBytes, b);
      w.add(x, acc[i]);
    }
  }
}

}  // namespace synod::cuda
