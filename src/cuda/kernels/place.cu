// Weights on the device: re-laying of blocks into planes, decoding of rows, the embedding look-up.
#include "cuda/kernels/decode.cuh"

namespace synod::cuda {
namespace {

// One block per row, a byte per thread and turn.
__global__ void __launch_bounds__(256) repack_kernel(const __grid_constant__ RepackParams p) {
  begin();
  const int64_t row = blockIdx.x;
  const uint8_t* blocks = p.blocks + row * p.row_bytes;
  for (int64_t i = threadIdx.x; i < p.row_bytes; i += 256) {
    const int64_t block = i / p.block_bytes;
    const auto offset = static_cast<int>(i % p.block_bytes);
#pragma unroll
    for (int f = 0; f < kMaxPlanes; ++f) {
      const int at = offset - p.plane_offset[f];
      if (f >= p.n_planes || at < 0 || at >= p.plane_bytes[f]) continue;
      p.plane[f][row * p.stride[f] + block * p.plane_bytes[f] + at] = blocks[i];
    }
  }
}

template <Codec kCodec>
__global__ void __launch_bounds__(128) decode_kernel(const __grid_constant__ DecodeParams p) {
  begin();
  const int64_t row = blockIdx.x;
  float* out = row_of(p.out, row);
  for (int k = static_cast<int>(threadIdx.x) * 16; k < p.matrix.n_in; k += 128 * 16) {
    Decoder<kCodec> decoder;
    decoder.load_from(p.matrix, p.first_row + row, k);
    float v[16];
    decoder.values(v);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (k + i < p.matrix.n_in) out[k + i] = v[i];
    }
  }
}

template <Codec kCodec>
__global__ void __launch_bounds__(128) range_kernel(const __grid_constant__ RangeParams p) {
  begin();
  float largest = 0.0F;
  for (int64_t row = blockIdx.x; row < p.matrix.n_out; row += gridDim.x) {
    for (int k = static_cast<int>(threadIdx.x) * 16; k < p.matrix.n_in; k += 128 * 16) {
      Decoder<kCodec> decoder;
      decoder.load_from(p.matrix, row, k);
      float v[16];
      decoder.values(v);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float a = fabsf(v[i]);
        if (k + i < p.matrix.n_in && a <= 3.402823466e38F) largest = fmaxf(largest, a);
      }
    }
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) atomicMax(p.largest, __float_as_uint(largest));
}

template <Codec kCodec>
__global__ void __launch_bounds__(128) embed_kernel(const __grid_constant__ EmbedParams p) {
  begin();
  const int64_t t = blockIdx.x;
  const int32_t id = p.ids[t];
  const bool known = id >= 0 && id < p.table.n_out;
  if (!known && threadIdx.x == 0 && blockIdx.y == 0) raise(p.status, 2);
  float* out = row_of(p.out, t);
  const int k = static_cast<int>(blockIdx.y * 128 + threadIdx.x) * 16;
  if (k >= p.table.n_in) return;
  float v[16] = {};
  if (known) {
    Decoder<kCodec> decoder;
    decoder.load_from(p.table, id, k);
    decoder.values(v);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (k + i < p.table.n_in) out[k + i] = v[i] * p.scale;
  }
}

}  // namespace

Launch repack(const RepackParams& p) {
  return make_launch("repack", repack_kernel, static_cast<unsigned>(p.n_rows), 256, p);
}
Launch decode_rows(const DecodeParams& p) {
  return with_codec(p.matrix.codec, rows_aligned(p.matrix), [&](auto tag) {
    return make_launch("decode_rows", decode_kernel<decltype(tag)::kValue>, static_cast<unsigned>(p.n_rows),
                       128, p);
  });
}
Launch matrix_range(const RangeParams& p) {
  return with_codec(p.matrix.codec, rows_aligned(p.matrix), [&](auto tag) {
    const auto blocks = static_cast<unsigned>(p.matrix.n_out < 4096 ? p.matrix.n_out : 4096);
    return make_launch("matrix_range", range_kernel<decltype(tag)::kValue>, blocks, 128, p);
  });
}
Launch embed(const EmbedParams& p) {
  return with_codec(p.table.codec, rows_aligned(p.table), [&](auto tag) {
    const dim3 grid(static_cast<unsigned>(p.n_tokens), static_cast<unsigned>(div_up(p.table.n_in, 128 * 16)));
    return make_launch("embed", embed_kernel<decltype(tag)::kValue>, grid, 128, p);
  });
}

}  // namespace synod::cuda
