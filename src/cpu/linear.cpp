// Linear, Projections, GroupedLinear, Embed: activations are prepared once per kind, then all rows of all
// matrices are one list of items. An output is one chain over k in one kernel, so the cut is invisible.
#include <algorithm>

#include "cpu/scratch.h"

namespace synod {
namespace cpu {
namespace {

constexpr int64_t kItemBytes = 256 * 1024;  // of weights; smaller items stream 5-12 % slower
constexpr int64_t kItemsPerThread = 8;
constexpr int64_t kOneRowLanes = 16;   // rows that a one-row kernel computes together
constexpr int64_t kTileGroup = 32;     // rows of a tile
constexpr int64_t kTileMinTokens = 5;  // the first token count at which a tile kernel may run
constexpr int64_t kMinPanelTokens = 64;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t item_rows(const PhasePart& part, int64_t item_bytes) {
  const int64_t step = part.n_tokens >= kTileMinTokens ? kTileGroup : kOneRowLanes;
  const int64_t rows = item_bytes / std::max<int64_t>(1, part.row_bytes) / step * step;
  return std::max(step, rows);
}

}  // namespace

void Records::prepare(Pool& pool, const KernelTable& table, ActivationKind kind, const Tensor& x) {
  const int64_t n = x.rows(), k = x.inner(), stride = record_bytes(kind, k);
  std::byte* base = buffers_[static_cast<size_t>(kind)].bytes(n * stride);
  auto& pointers = pointers_[static_cast<size_t>(kind)];
  pointers.resize(static_cast<size_t>(n));
  for (int64_t r = 0; r < n; ++r) pointers[static_cast<size_t>(r)] = base + r * stride;
  constexpr int64_t kMaxStep = 16;
  const int64_t step = std::clamp<int64_t>(n / (4 * pool.n_threads()), 1, kMaxStep);
  pool.run(divide_up(n, step), [&](int64_t item, int) {
    for (int64_t r = item * step; r < std::min(n, (item + 1) * step); ++r) {
      table.prepare(kind, x.row_as<const float>(r), k, base + r * stride);
    }
  });
}

void cut_into_items(std::span<const PhasePart> parts, int n_threads, std::vector<Item>& items) {
  items.clear();
  int64_t total = 0, n_row_items = 0;
  for (const PhasePart& part : parts) total += part.n_rows * part.row_bytes;
  const int64_t item_bytes = std::min(kItemBytes, total / (kItemsPerThread * n_threads));
  for (const PhasePart& part : parts) n_row_items += divide_up(part.n_rows, item_rows(part, item_bytes));
  // Matrices of few rows are cut along the tokens too, so that every thread has some.
  const int64_t n_panels = divide_up(kItemsPerThread / 2 * n_threads, std::max<int64_t>(1, n_row_items));
  for (size_t p = 0; p < parts.size(); ++p) {
    const PhasePart& part = parts[p];
    const int64_t rows = item_rows(part, item_bytes);
    const int64_t panel = std::clamp(divide_up(part.n_tokens, n_panels), kMinPanelTokens, kMaxPanelTokens);
    for (int64_t r = 0; r < part.n_rows; r += rows) {
      for (int64_t t = 0; t < part.n_tokens; t += panel) {
        items.push_back({.product = static_cast<int64_t>(p),
                         .row_begin = r,
                         .row_end = std::min(part.n_rows, r + rows),
                         .token_begin = t,
                         .token_end = std::min(part.n_tokens, t + panel)});
      }
    }
  }
}

void ProductPhase::run(Pool& pool, const KernelTable& table, std::span<ThreadScratch> threads) {
  parts.clear();
  for (const Product& p : products) {
    const int64_t rows = p.weight.n_out;
    parts.push_back({.n_rows = rows,
                     .row_bytes = rows == 0 ? 0 : divide_up(p.weight.bytes(), rows),
                     .n_tokens = p.n_tokens});
  }
  cut_into_items(parts, pool.n_threads(), items);
  const auto rows_of = [&](const Item& item) {
    const Matrix& weight = products[static_cast<size_t>(item.product)].weight;
    return weight.data + item.row_begin * weight.row_stride;
  };
  pool.run_ahead(static_cast<int64_t>(items.size()), [&](int64_t i, int64_t next, int thread) {
    const Item& item = items[static_cast<size_t>(i)];
    const Product& p = products[static_cast<size_t>(item.product)];
    const std::byte* next_rows = next < 0 ? nullptr : rows_of(items[static_cast<size_t>(next)]);
    ThreadScratch& scratch = threads[static_cast<size_t>(thread)];
    for (int64_t t = item.token_begin; t < item.token_end; t += p.call_tokens) {
      const int64_t n = std::min(p.call_tokens, item.token_end - t);
      scratch.out.resize(static_cast<size_t>(n));
      for (int64_t m = 0; m < n; ++m) scratch.out[static_cast<size_t>(m)] = p.outputs[t + m] + item.row_begin;
      table.rows(p.weight, item.row_begin, item.row_end, {p.records + t, static_cast<size_t>(n)}, scratch.out,
                 scratch.for_kernel(n), next_rows);
    }
  });
}

}  // namespace cpu

void CpuBackend::run(const Linear& op) {
  Projections one{.x = op.x, .n_parts = 1};
  one.parts[0] = {.out = op.out, .weight = op.weight};
  run(one);
}

void CpuBackend::run(const Projections& op) {
  const int64_t n = op.x.dim(0);
  Scratch& s = *scratch_;
  s.outputs.clear();
  for (int i = 0; i < op.n_parts; ++i) {
    const Tensor& out = op.parts[static_cast<size_t>(i)].out;
    for (int64_t t = 0; t < n; ++t) s.outputs.push_back(out.row_as<float>(t));
  }
  s.phase.products.clear();
  uint32_t prepared = 0;
  for (int i = 0; i < op.n_parts; ++i) {
    const Matrix& weight = op.parts[static_cast<size_t>(i)].weight;
    const cpu::ActivationKind kind = cpu::activation_kind(weight);
    const uint32_t bit = 1U << static_cast<uint32_t>(kind);
    if ((prepared & bit) == 0) s.inputs.prepare(pool_, kernels_, kind, op.x);
    prepared |= bit;
    s.phase.products.push_back(
        {.weight = weight, .records = s.inputs.of(kind), .outputs = s.outputs.data() + i * n, .n_tokens = n});
  }
  s.phase.run(pool_, kernels_, s.threads);
}

void CpuBackend::run(const GroupedLinear& op) {
  const int64_t n = op.x.dim(0), n_groups = op.x.dim(1), n_out = op.out.dim(2);
  Scratch& s = *scratch_;
  // [n_tokens, n_groups, d] -> [n_groups, n_tokens, d]: the records of a group follow each other.
  Tensor by_group = op.x;
  std::swap(by_group.shape[0], by_group.shape[1]);
  std::swap(by_group.stride[0], by_group.stride[1]);
  const cpu::ActivationKind kind = cpu::activation_kind(op.weight);
  s.inputs.prepare(pool_, kernels_, kind, by_group);
  s.outputs.clear();
  for (int64_t g = 0; g < n_groups; ++g) {
    for (int64_t t = 0; t < n; ++t) s.outputs.push_back(op.out.row_as<float>(t * n_groups + g));
  }
  s.phase.products.clear();
  for (int64_t g = 0; g < n_groups; ++g) {
    s.phase.products.push_back({.weight = op.weight.rows(g * n_out, (g + 1) * n_out),
                                .records = s.inputs.of(kind) + g * n,
                                .outputs = s.outputs.data() + g * n,
                                .n_tokens = n});
  }
  s.phase.run(pool_, kernels_, s.threads);
}

void CpuBackend::run(const Embed& op) {
  constexpr int64_t kTokens = 16;  // per item
  const int64_t n = op.ids.dim(0);
  pool_.run((n + kTokens - 1) / kTokens, [&](int64_t item, int) {
    for (int64_t t = item * kTokens; t < std::min(n, (item + 1) * kTokens); ++t) {
      float* out = op.out.row_as<float>(t);
      const int64_t id = op.ids.as<const int32_t>()[t];
      if (id < 0 || id >= op.table.n_out) {
        std::fill_n(out, op.table.n_in, 0.0F);
        raise(Status::kBadId);
        continue;
      }
      decode_row(op.table, id, out);
      for (int64_t i = 0; i < op.table.n_in; ++i) out[i] *= op.scale;
    }
  });
}

}  // namespace synod
