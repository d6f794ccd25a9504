#include "cuda/weight_store.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cuda/file_reader.h"
#include "quant/iq_tables.h"

namespace synod::cuda {

// A device matrix to make: one stored matrix, or experts stacked by rows.
struct WeightStore::Item {
  std::span<const Matrix> sources;
  Matrix shape;  // what the device holds: sources[0], or f32
  bool decode = false;
  WeightLayout layout;
  int64_t rows = 0;        // of all sources
  int64_t scale_rows = 0;  // of one source
  int64_t bytes = 0;
  DeviceMatrix placed;

  Item(std::span<const Matrix> matrices, bool as_float) : sources(matrices), shape(matrices[0]) {
    const auto n = static_cast<int64_t>(matrices.size());
    rows = n * shape.n_out;
    decode =
        as_float || !std::ranges::all_of(matrices, [&](const Matrix& m) { return alike(m, matrices[0]); });
    // Scale tiles of stacked matrices must not share a row.
    if (n > 1 && shape.storage == Storage::kFp8Block &&
        (shape.row_offset != 0 || shape.n_out % shape.tile_out != 0))
      decode = true;
    if (decode) {
      shape =
          Matrix{.storage = Storage::kPlain, .type = DType::kF32, .n_out = shape.n_out, .n_in = shape.n_in};
    }
    layout = layout_of(shape);
    scale_rows = scale_rows_of(shape);
    bytes = device_bytes(layout, rows, n * scale_rows);
  }
  // The tile kernels read whole tiles: rows past the last one, of what follows.
  int64_t read_after() const {
    int64_t stride = 0;
    for (int i = 0; i < layout.n_planes; ++i)
      stride = std::max(stride, layout.planes[static_cast<size_t>(i)].stride);
    return stride * (kUnitRows - 1);
  }
};

namespace {

struct Codebook {
  const void* data;
  size_t bytes;
};
Codebook codebook_of(DType type) {
  const auto of = [](const auto& table) { return Codebook{table.data(), sizeof(table)}; };
  switch (type) {
    case DType::kIQ2_XXS:
      return of(kIq2XxsGrid);
    case DType::kIQ2_XS:
      return of(kIq2XsGrid);
    case DType::kIQ2_S:
      return of(kIq2SGrid);
    case DType::kIQ3_XXS:
      return of(kIq3XxsGrid);
    case DType::kIQ3_S:
      return of(kIq3SGrid);
    case DType::kIQ1_S:
    case DType::kIQ1_M:
      return of(kIq1Grid);
    default:
      return {nullptr, 0};
  }
}

}  // namespace

WeightStore::WeightStore(Device& device) : device_(device) {}

WeightStore::~WeightStore() {
  clear_extra();
  if (slab_ != nullptr) device_.release(slab_);
  for (const auto& [type, data] : codebooks_) device_.release(data);
}

const void* WeightStore::codebook(DType type) {
  const Codebook book = codebook_of(type);
  if (book.data == nullptr) return nullptr;
  std::byte*& data = codebooks_[type];
  if (data == nullptr) {
    data = device_.allocate(static_cast<int64_t>(book.bytes));
    device_.upload(data, static_cast<const std::byte*>(book.data), static_cast<int64_t>(book.bytes));
    device_.synchronize();
  }
  return data;
}

int64_t WeightStore::planned_bytes(const WeightSet& set) {
  int64_t bytes = 0, after = 0;
  for (const WeightSet::Entry& entry : set.matrices) {
    const Item item(entry.all(), entry.as_float);
    bytes += item.bytes;
    after = std::max(after, item.read_after());
  }
  for (const Tensor& t : set.constants) bytes += (t.bytes() + kPlaneAlign - 1) / kPlaneAlign * kPlaneAlign;
  return bytes == 0 ? 0 : bytes + after;
}

void WeightStore::place(const WeightSet& set) {
  matrices_.clear();
  constants_.clear();
  if (slab_ != nullptr) device_.release(slab_);
  slab_ = nullptr;
  bytes_ = planned_bytes(set);
  if (bytes_ == 0) return;
  const int64_t free = device_.free_bytes();
  if (bytes_ > free) {
    fail(Error::Kind::kNoMemory,
         "{}: weights do not fit in device memory: expected at most {} (free), got {}", device_.name(),
         human_bytes(free), human_bytes(bytes_));
  }
  slab_ = device_.allocate(bytes_);
  std::vector<Item> items;
  items.reserve(set.matrices.size());
  for (const WeightSet::Entry& entry : set.matrices) items.emplace_back(entry.all(), entry.as_float);
  {
    const int n_threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) - 1, 1, 8);
    Uploader uploader(device_, n_threads);
    upload(uploader, items, slab_);
  }
  std::byte* at = slab_;
  for (const Item& item : items) {
    matrices_[item.sources[0].data].push_back(item.placed);
    at += item.bytes;
  }
  std::vector<std::byte> host;  // constants are small: one copy
  const std::byte* first = at;
  for (const Tensor& t : set.constants) {
    constants_[t.data] = at;
    const size_t offset = host.size();
    host.resize(offset + static_cast<size_t>((t.bytes() + kPlaneAlign - 1) / kPlaneAlign * kPlaneAlign));
    const int64_t row = row_bytes(t.type, t.inner());
    for (int64_t r = 0; r < t.rows(); ++r) {
      std::memcpy(host.data() + offset + static_cast<size_t>(r * row), t.row(r), static_cast<size_t>(row));
    }
    at = slab_ + (first - slab_) + static_cast<int64_t>(host.size());
  }
  if (!host.empty()) {
    device_.upload(slab_ + (first - slab_), host.data(), static_cast<int64_t>(host.size()));
    device_.synchronize();
  }
}

void WeightStore::upload(Uploader& uploader, std::vector<Item>& items, std::byte* slab) {
  const FileReader reader;
  std::vector<Piece> pieces;
  std::byte* base = slab;
  for (Item& item : items) {
    item.placed = describe(item.shape, item.layout, item.rows, base);
    item.placed.codebook = codebook(item.shape.type);
    base += item.bytes;
    const DeviceMatrix& placed = item.placed;
    const int64_t row_bytes = item.shape.code_bytes();
    const int64_t step = std::max<int64_t>(1, uploader.piece_bytes() / row_bytes);
    for (size_t s = 0; s < item.sources.size(); ++s) {
      const Matrix* source = &item.sources[s];
      const int64_t n_out = source->n_out;
      for (int64_t first = 0; first < n_out; first += step) {
        const int64_t n = std::min(step, n_out - first);
        Piece piece;
        piece.bytes = n * row_bytes;
        piece.read = [source, first, n, row_bytes, decode = item.decode, &reader](std::byte* to) {
          if (decode) {
            for (int64_t r = 0; r < n; ++r) {
              decode_row(*source, first + r, reinterpret_cast<float*>(to + r * row_bytes));
            }
          } else if (source->row_stride == row_bytes) {
            reader.read(source->data + first * row_bytes, n * row_bytes, to);
          } else {
            for (int64_t r = 0; r < n; ++r) {
              std::memcpy(to + r * row_bytes, source->data + (first + r) * source->row_stride,
                          static_cast<size_t>(row_bytes));
            }
          }
        };
        const int64_t at = static_cast<int64_t>(s) * n_out + first;
        RepackParams p;
        p.row_bytes = row_bytes;
        p.n_rows = n;
        p.block_bytes = item.layout.planar() ? item.layout.block_bytes : static_cast<int32_t>(row_bytes);
        p.n_planes = item.layout.planar() ? item.layout.n_planes : 1;
        for (int i = 0; i < p.n_planes; ++i) {
          const PlaneLayout& plane = item.layout.planes[static_cast<size_t>(i)];
          p.plane_offset[i] = plane.offset, p.plane_bytes[i] = plane.bytes, p.stride[i] = plane.stride;
          p.plane[i] = const_cast<uint8_t*>(placed.plane[i]) + at * plane.stride;
        }
        piece.place = [this, p](std::byte* staged) mutable {
          p.blocks = reinterpret_cast<const uint8_t*>(staged);
          device_.launch(repack(p));
        };
        pieces.push_back(std::move(piece));
      }
      if (item.layout.planar() || item.layout.n_planes == 1) continue;
      const int64_t scale_bytes = item.layout.planes[1].stride;
      const int64_t scale_step = std::max<int64_t>(1, uploader.piece_bytes() / scale_bytes);
      for (int i = 1; i < item.layout.n_planes; ++i) {
        const std::byte* from = i == 1 ? source->scales : source->biases;
        for (int64_t first = 0; first < item.scale_rows; first += scale_step) {
          const int64_t n = std::min(scale_step, item.scale_rows - first);
          std::byte* to_device = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(placed.plane[i])) +
                                 (static_cast<int64_t>(s) * item.scale_rows + first) * scale_bytes;
          pieces.push_back({.bytes = n * scale_bytes,
                            .read =
                                [source, from, first, n, scale_bytes](std::byte* to) {
                                  for (int64_t r = 0; r < n; ++r) {
                                    std::memcpy(to + r * scale_bytes,
                                                from + (first + r) * source->scale_stride,
                                                static_cast<size_t>(scale_bytes));
                                  }
                                },
                            .place =
                                [this, to_device, n, scale_bytes](std::byte* staged) {
                                  RepackParams p;
                                  p.blocks = reinterpret_cast<const uint8_t*>(staged);
                                  p.row_bytes = scale_bytes, p.n_rows = n;
                                  p.block_bytes = static_cast<int32_t>(scale_bytes), p.n_planes = 1;
                                  p.plane_bytes[0] = p.block_bytes, p.stride[0] = scale_bytes;
                                  p.plane[0] = reinterpret_cast<uint8_t*>(to_device);
                                  device_.launch(repack(p));
                                }});
        }
      }
    }
  }
  uploader.run(pieces);

  // The power of two that brings each matrix's largest value below 1, for the f16 products.
  std::byte* largest = device_.allocate(static_cast<int64_t>(items.size()) * 4);
  device_.clear(largest, static_cast<int64_t>(items.size()) * 4);
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].placed.codec == Codec::kI32) continue;
    device_.launch(
        matrix_range({.matrix = items[i].placed, .largest = reinterpret_cast<uint32_t*>(largest) + i}));
  }
  std::vector<float> values(items.size());
  device_.download(reinterpret_cast<std::byte*>(values.data()), largest,
                   static_cast<int64_t>(items.size()) * 4);
  device_.synchronize();
  device_.release(largest);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!(values[i] > 0.0F)) continue;
    const int exponent = std::clamp(std::ilogb(values[i]) + 1, -100, 100);
    items[i].placed.range = std::ldexp(1.0F, -exponent);
  }
}

const DeviceMatrix& WeightStore::place_extra(std::span<const Matrix> experts, bool as_float) {
  std::vector<Item> items;
  items.emplace_back(experts, as_float);
  std::byte* data = device_.allocate(std::max<int64_t>(items[0].bytes + items[0].read_after(), kPlaneAlign));
  extra_memory_.push_back(data);
  constexpr int64_t kSmallPieces = 1 << 20;
  if (extra_uploader_ == nullptr) extra_uploader_ = std::make_unique<Uploader>(device_, 1, kSmallPieces);
  upload(*extra_uploader_, items, data);
  return extra_[experts[0].data].emplace_back(items[0].placed);
}

void WeightStore::clear_extra() {
  extra_.clear();
  for (std::byte* data : extra_memory_) device_.release(data);
  extra_memory_.clear();
}

const DeviceMatrix* WeightStore::find(const Matrix& m) const { return find(std::span(&m, 1)); }

const DeviceMatrix* WeightStore::find(std::span<const Matrix> experts) const {
  const int64_t rows = experts[0].n_out * static_cast<int64_t>(experts.size());
  for (const auto* placed : {&matrices_, &extra_}) {
    const auto it = placed->find(experts[0].data);
    if (it == placed->end()) continue;
    for (const DeviceMatrix& d : it->second) {
      if (d.n_out == rows && d.n_in == experts[0].n_in) return &d;
    }
  }
  return nullptr;
}

const std::byte* WeightStore::find_constant(const void* host) const {
  const auto it = constants_.find(host);
  return it == constants_.end() ? nullptr : it->second;
}

}  // namespace synod::cuda
