#include "cuda/weight_layout.h"

#include "base/error.h"

namespace synod::cuda {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t aligned(int64_t bytes, int64_t to) { return divide_up(bytes, to) * to; }

struct Field {
  int32_t offset, bytes;
};

WeightLayout planar(Codec codec, const Matrix& m, std::initializer_list<Field> fields) {
  WeightLayout layout;
  layout.codec = codec;
  layout.block_bytes = static_cast<int32_t>(info(m.type).block_bytes);
  layout.n_planes = 0;
  const int64_t blocks = m.n_in / info(m.type).block_values;
  for (const Field& f : fields) {
    layout.planes[static_cast<size_t>(layout.n_planes++)] = {f.offset, f.bytes, blocks * f.bytes};
  }
  return layout;
}

WeightLayout rows_as_stored(Codec codec, const Matrix& m) {
  WeightLayout layout;
  layout.codec = codec;
  const int64_t bytes = m.code_bytes();
  layout.planes[0] = {0, static_cast<int32_t>(bytes), aligned(bytes, 16)};
  return layout;
}

}  // namespace

WeightLayout layout_of(const Matrix& m) {
  switch (m.storage) {
    case Storage::kPlain:
      switch (m.type) {
        case DType::kF16:
          return rows_as_stored(Codec::kF16, m);
        case DType::kBF16:
          return rows_as_stored(Codec::kBF16, m);
        case DType::kF64:
          return rows_as_stored(Codec::kF64, m);
        case DType::kI32:
          return rows_as_stored(Codec::kI32, m);
        default:
          SYNOD_ASSERT(m.type == DType::kF32);
          return rows_as_stored(Codec::kF32, m);
      }
    case Storage::kBlock:
      switch (m.type) {
        case DType::kQ8_0:
          return planar(Codec::kQ8_0, m, {{2, 32}, {0, 2}});
        case DType::kQ4_0:
          return planar(Codec::kQ4_0, m, {{2, 16}, {0, 2}});
        case DType::kQ5_0:
          return planar(Codec::kQ5_0, m, {{6, 16}, {2, 4}, {0, 2}});
        case DType::kIQ4_NL:
          return planar(Codec::kIQ4_NL, m, {{2, 16}, {0, 2}});
        case DType::kMXFP4:
          return planar(Codec::kMXFP4, m, {{1, 16}, {0, 1}});
        case DType::kQ4_K:
          return planar(Codec::kQ4_K, m, {{16, 128}, {0, 16}});
        case DType::kQ5_K:
          return planar(Codec::kQ5_K, m, {{48, 128}, {16, 32}, {0, 16}});
        case DType::kQ6_K:
          return planar(Codec::kQ6_K, m, {{0, 128}, {128, 64}, {192, 16}, {208, 2}});
        case DType::kQ2_K:
          return planar(Codec::kQ2_K, m, {{16, 64}, {0, 16}, {80, 4}});
        case DType::kIQ2_XXS:
          return planar(Codec::kIQ2_XXS, m, {{2, 64}, {0, 2}});
        default:
          return rows_as_stored(Codec::kBlocks, m);
      }
    default:
      break;
  }
  const Codec codec = m.storage == Storage::kFp8Block ? Codec::kFp8Block
                      : m.storage == Storage::kFp4    ? Codec::kFp4
                      : m.storage == Storage::kNvFp4  ? Codec::kNvFp4
                      : m.storage == Storage::kMxFp8  ? Codec::kMxFp8
                                                      : Codec::kMlxAffine;
  WeightLayout layout = rows_as_stored(codec, m);
  const auto scale_bytes = static_cast<int32_t>(scale_row_bytes(m));
  layout.planes[1] = {0, scale_bytes, scale_bytes};
  layout.n_planes = 2;
  if (codec == Codec::kMlxAffine) layout.planes[static_cast<size_t>(layout.n_planes++)] = layout.planes[1];
  return layout;
}

int64_t scale_rows_of(const Matrix& m) {
  if (m.storage == Storage::kPlain || m.storage == Storage::kBlock) return 0;
  if (m.storage != Storage::kFp8Block) return m.n_out;
  return m.n_out == 0 ? 0 : (m.row_offset + m.n_out - 1) / m.tile_out + 1;
}

int64_t scale_row_bytes(const Matrix& m) {
  const DType type = m.storage == Storage::kFp4 || m.storage == Storage::kMxFp8 ? DType::kF8E8M0
                     : m.storage == Storage::kNvFp4                             ? DType::kF8E4M3
                                                                                : m.scale_type;
  return divide_up(m.n_in, m.group) * info(type).block_bytes;
}

int64_t device_bytes(const WeightLayout& layout, int64_t n_rows, int64_t scale_rows) {
  int64_t bytes = 0;
  for (int i = 0; i < layout.n_planes; ++i) {
    const int64_t rows = layout.planar() || i == 0 ? n_rows : scale_rows;
    bytes += aligned(rows * layout.planes[static_cast<size_t>(i)].stride, kPlaneAlign);
  }
  return bytes;
}

DeviceMatrix describe(const Matrix& m, const WeightLayout& layout, int64_t n_rows, std::byte* base) {
  DeviceMatrix d;
  d.n_out = n_rows;
  d.n_in = static_cast<int32_t>(m.n_in);
  d.codec = layout.codec;
  d.dtype = static_cast<int32_t>(m.type);
  d.scale_type = static_cast<int32_t>(m.scale_type);
  d.group = static_cast<int32_t>(m.group);
  d.tile_out = static_cast<int32_t>(m.tile_out);
  d.row_offset = static_cast<int32_t>(m.row_offset);
  d.bits = m.bits;
  d.global = m.global_scale;
  d.global_divides = m.global_divides ? 1 : 0;
  if (layout.codec == Codec::kBlocks) {
    d.group = static_cast<int32_t>(info(m.type).block_values);
    d.bits = static_cast<int32_t>(info(m.type).block_bytes);
  }
  const int64_t scale_rows = m.storage == Storage::kFp8Block ? scale_rows_of(m) : n_rows;
  for (int i = 0; i < layout.n_planes; ++i) {
    const PlaneLayout& plane = layout.planes[static_cast<size_t>(i)];
    d.plane[i] = reinterpret_cast<const uint8_t*>(base);
    d.stride[i] = plane.stride;
    base += aligned((layout.planar() || i == 0 ? n_rows : scale_rows) * plane.stride, kPlaneAlign);
  }
  return d;
}

bool alike(const Matrix& a, const Matrix& b) {
  return a.storage == b.storage && a.type == b.type && a.n_out == b.n_out && a.n_in == b.n_in &&
         a.scale_type == b.scale_type && a.group == b.group && a.tile_out == b.tile_out &&
         a.row_offset == b.row_offset && a.bits == b.bits && a.global_scale == b.global_scale &&
         a.global_divides == b.global_divides;
}

}  // namespace synod::cuda
