// Products with stored matrices, experts, attention.
#include <algorithm>
#include <bit>

#include "cuda/builder.h"
#include "cuda/views.h"

namespace synod::cuda {

namespace {

View flat(float* p, int64_t d) {
  View v;
  v.p = p, v.s0 = d, v.d = static_cast<int32_t>(d);
  return v;
}
View slots(float* p, int64_t k, int64_t d) {
  View v = flat(p, k * d);
  v.n1 = static_cast<int32_t>(k), v.s1 = d, v.d = static_cast<int32_t>(d);
  return v;
}
int64_t stride_of(const Tensor& t) { return t.stride[0] / 4; }

}  // namespace

void Builder::run(const Linear& op) {
  if (op.x.dim(0) == 0) return;
  const Product part{.weight = &device(op.weight), .out = view_of(op.out)};
  products({&part, 1}, {.view = view_of(op.x), .n = op.x.dim(0)});
}

void Builder::run(const Projections& op) {
  if (op.x.dim(0) == 0) return;
  std::vector<Product> parts;
  for (int i = 0; i < op.n_parts; ++i) {
    const Projections::Part& part = op.parts[static_cast<size_t>(i)];
    parts.push_back({.weight = &device(part.weight), .out = view_of(part.out)});
  }
  products(parts, {.view = view_of(op.x), .n = op.x.dim(0)});
}

void Builder::products(std::span<const Product> parts, const Rows& x) {
  if (x.n > kDecodeTokens) {
    for (const Product& part : parts) {
      GemmParams p{.weight = *part.weight, .x = halves(x, needs_low_half(*part.weight)), .out = part.out};
      p.n_tokens = x.n;
      p.rows = part.weight->n_out;
      emit(gemm(p));
    }
    return;
  }
  // Parts of one codec share a launch.
  std::vector<bool> done(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (done[i]) continue;
    GemvParams p{.n_tokens = static_cast<int32_t>(x.n), .x = x.view};
    for (size_t j = i; j < parts.size(); ++j) {
      if (done[j] || parts[j].weight->codec != parts[i].weight->codec || p.n_parts == kMaxParts) continue;
      p.parts[p.n_parts++] = {.weight = *parts[j].weight, .out = parts[j].out};
      p.n_rows += parts[j].weight->n_out;
      done[j] = true;
    }
    if (uses_digits(*parts[i].weight)) p.digits = digits(x);
    emit(gemv(p));
  }
}

void Builder::run(const GroupedLinear& op) {
  const int64_t n = op.x.dim(0), groups = op.x.dim(1), rows = op.out.dim(2);
  if (n == 0) return;
  const DeviceMatrix& weight = device(op.weight);
  const Rows x{.view = view_of(op.x), .n = n * groups};
  if (n > kDecodeTokens) {
    GemmParams p{.weight = weight, .x = halves(x, needs_low_half(weight)), .out = view_of(op.out)};
    p.n_tokens = n;
    p.rows = rows;
    p.n_groups = static_cast<int32_t>(groups);
    return emit(gemm(p));
  }
  GemvParams p{.n_parts = 1, .n_tokens = static_cast<int32_t>(n), .n_rows = weight.n_out, .x = x.view};
  p.parts[0] = {.weight = weight, .out = view_of(op.out)};
  p.n_groups = static_cast<int32_t>(groups);
  p.rows_per_group = rows;
  if (uses_digits(weight)) p.digits = digits(x);
  emit(gemv(p));
}

struct Builder::Tiles {
  int32_t *expert, *start, *count, *slots;
  int32_t max_tiles;
};

// Slots by expert, in token order, cut into tiles of kGemmTokens.
Builder::Tiles Builder::sort_slots(const Tensor& ids, int64_t n_experts) {
  SortParams p{.ids = ids.as<int32_t>(), .ids_stride = stride_of(ids)};
  p.n_tokens = static_cast<int32_t>(ids.dim(0));
  p.k = static_cast<int32_t>(ids.dim(1));
  p.n_experts = static_cast<int32_t>(n_experts);
  const int64_t n_slots = ids.dim(0) * ids.dim(1);
  p.max_tiles = static_cast<int32_t>(std::min(n_slots, n_slots / kGemmTokens + n_experts));
  p.counts = temporary<int32_t>(n_experts + 1);
  p.slots = temporary<int32_t>(n_slots);
  p.tile_expert = temporary<int32_t>(p.max_tiles);
  p.tile_start = temporary<int32_t>(p.max_tiles);
  p.tile_count = temporary<int32_t>(p.max_tiles);
  p.status = status();
  emit(sort_count(p));
  emit(sort_place(p));
  return {p.tile_expert, p.tile_start, p.tile_count, p.slots, p.max_tiles};
}

namespace {

GemmParams expert_gemm(const DeviceMatrix& weight, const HalfRows& x, const View& out, int64_t rows,
                       int64_t k, bool x_per_slot) {
  GemmParams p{.weight = weight, .x = x, .out = out};
  p.rows = rows;
  p.k = static_cast<int32_t>(k);
  p.x_per_slot = x_per_slot ? 1 : 0;
  return p;
}

}  // namespace

void Builder::run(const ExpertLinear& op) {
  const int64_t n = op.ids.dim(0), k = op.ids.dim(1);
  if (n == 0) return;
  const DeviceMatrix& weight = device(op.experts);
  const bool per_slot = op.x.rank == 3;
  const Rows x{.view = view_of(op.x), .n = per_slot ? n * k : n};
  const int64_t rows = op.out.dim(2);
  if (n > kDecodeTokens) {
    const HalfRows halved = halves(x, needs_low_half(weight));
    const Tiles tiles = sort_slots(op.ids, static_cast<int64_t>(op.experts.size()));
    GemmParams p = expert_gemm(weight, halved, view_of(op.out), rows, k, per_slot);
    p.tile_expert = tiles.expert, p.tile_start = tiles.start, p.tile_count = tiles.count,
    p.slots = tiles.slots;
    p.max_tiles = tiles.max_tiles;
    return emit(gemm(p));
  }
  ExpertGemvParams p{.gate = weight, .rows_per_expert = rows};
  p.n_experts = static_cast<int32_t>(op.experts.size());
  p.n_tokens = static_cast<int32_t>(n), p.k = static_cast<int32_t>(k);
  p.ids = op.ids.as<int32_t>(), p.ids_stride = stride_of(op.ids);
  p.out = view_of(op.out);
  p.x = x.view, p.x_per_slot = per_slot ? 1 : 0;
  p.status = status();
  if (uses_digits(weight)) p.digits = digits(x);
  emit(expert_gemv(p));
}

void Builder::run(const CombineExperts& op) {
  CombineParams p{.out = view_of(op.out), .x = view_of(op.x)};
  if (op.shared) p.shared = view_of(op.shared);
  if (op.weights) p.weights = op.weights.as<float>(), p.weights_stride = stride_of(op.weights);
  p.k = static_cast<int32_t>(op.x.dim(1)), p.n_tokens = static_cast<int32_t>(op.x.dim(0));
  if (p.n_tokens > 0) emit(combine_experts(p));
}

void Builder::run(const ExpertFfn& op) {
  const int64_t n = op.ids.dim(0), k = op.ids.dim(1), d_expert = op.down[0].n_in;
  if (n == 0) return;
  if (n > kDecodeTokens) return grouped_ffn(op);
  const DeviceMatrix &gate = device(op.gate), &up = device(op.up), &down = device(op.down);
  const Rows x{.view = view_of(op.x), .n = n};
  auto* hidden = temporary<float>(n * k * d_expert);
  ExpertGemvParams p{.gate = gate, .rows_per_expert = d_expert};
  p.n_experts = static_cast<int32_t>(op.gate.size());
  p.n_tokens = static_cast<int32_t>(n), p.k = static_cast<int32_t>(k);
  p.ids = op.ids.as<int32_t>(), p.ids_stride = stride_of(op.ids);
  p.out = slots(hidden, k, d_expert);
  p.x = x.view;
  p.act = op.act == Glu::Act::kSilu ? 0 : 1;
  p.limit = op.limit;
  p.status = status();
  if (op.round_hidden) p.row_weight = op.weights.as<float>(), p.row_weight_stride = stride_of(op.weights);
  if (uses_digits(gate)) p.digits = digits(x);
  if (gate.codec == up.codec) {
    p.up = up;
    emit(expert_gemv(p));
  } else {
    emit(expert_gemv(p));
    auto* other = temporary<float>(n * k * d_expert);
    ExpertGemvParams u = p;
    u.gate = up;
    u.out = slots(other, k, d_expert);
    u.digits = uses_digits(up) ? digits(x) : DigitRows{};
    emit(expert_gemv(u));
    SYNOD_ASSERT(!op.round_hidden || op.weights.is_contiguous());
    append_row_step({.kind = RowStep::kGlu,
                     .act = p.act,
                     .dst = flat(hidden, d_expert),
                     .a = flat(hidden, d_expert),
                     .b = flat(other, d_expert),
                     .w = p.row_weight,
                     .limit = op.limit},
                    n * k, static_cast<int32_t>(d_expert));
  }
  constexpr int32_t kFp8Block = 128;
  if (op.round_hidden) {
    emit(round_trip({.out = flat(hidden, d_expert),
                     .x = flat(hidden, d_expert),
                     .n_rows = n * k,
                     .block = kFp8Block,
                     .count = static_cast<int32_t>(d_expert)}));
  }
  ExpertDownParams d{.down = down, .rows_per_expert = op.out.dim(1)};
  d.n_experts = p.n_experts, d.n_tokens = p.n_tokens, d.k = p.k;
  d.ids = p.ids, d.ids_stride = p.ids_stride;
  if (!op.round_hidden) d.weights = op.weights.as<float>(), d.weights_stride = stride_of(op.weights);
  d.x = slots(hidden, k, d_expert);
  d.out = view_of(op.out);
  if (op.shared) d.shared = view_of(op.shared);
  if (uses_digits(down)) d.digits = digits({.view = flat(hidden, d_expert), .n = n * k});
  emit(expert_down(d));
}

// Many tokens: one sorted list of slots serves gate, up and down.
void Builder::grouped_ffn(const ExpertFfn& op) {
  const int64_t n = op.ids.dim(0), k = op.ids.dim(1), d_expert = op.down[0].n_in, d_model = op.out.dim(1);
  const DeviceMatrix &gate = device(op.gate), &up = device(op.up), &down = device(op.down);
  const Rows x{.view = view_of(op.x), .n = n};
  const HalfRows input = halves(x, needs_low_half(gate) || needs_low_half(up));
  const Tiles tiles = sort_slots(op.ids, static_cast<int64_t>(op.gate.size()));
  const auto run_tiles = [&](GemmParams p) {
    p.tile_expert = tiles.expert, p.tile_start = tiles.start, p.tile_count = tiles.count,
    p.slots = tiles.slots;
    p.max_tiles = tiles.max_tiles;
    emit(gemm(p));
  };
  auto* hidden = temporary<float>(n * k * d_expert);
  auto* other = temporary<float>(n * k * d_expert);
  auto* rows = temporary<float>(n * k * d_model);
  run_tiles(expert_gemm(gate, input, flat(hidden, d_expert), d_expert, k, false));
  run_tiles(expert_gemm(up, input, flat(other, d_expert), d_expert, k, false));
  SYNOD_ASSERT(op.weights.is_contiguous());
  append_row_step({.kind = RowStep::kGlu,
                   .act = op.act == Glu::Act::kSilu ? 0 : 1,
                   .dst = flat(hidden, d_expert),
                   .a = flat(hidden, d_expert),
                   .b = flat(other, d_expert),
                   .w = op.round_hidden ? op.weights.as<float>() : nullptr,
                   .limit = op.limit},
                  n * k, static_cast<int32_t>(d_expert));
  constexpr int32_t kFp8Block = 128;
  if (op.round_hidden) {
    emit(round_trip({.out = flat(hidden, d_expert),
                     .x = flat(hidden, d_expert),
                     .n_rows = n * k,
                     .block = kFp8Block,
                     .count = static_cast<int32_t>(d_expert)}));
  }
  const HalfRows halved = halves({.view = flat(hidden, d_expert), .n = n * k}, needs_low_half(down));
  run_tiles(expert_gemm(down, halved, flat(rows, d_model), d_model, k, true));
  CombineParams c{.out = view_of(op.out), .x = slots(rows, k, d_model)};
  if (op.shared) c.shared = view_of(op.shared);
  if (!op.round_hidden) c.weights = op.weights.as<float>(), c.weights_stride = stride_of(op.weights);
  c.k = static_cast<int32_t>(k), c.n_tokens = static_cast<int32_t>(n);
  emit(combine_experts(c));
}

void Builder::route(RouteParams p, const Tensor& ids, const Tensor& weights, const Tensor& logits) {
  p.ids = ids.as<int32_t>(), p.weights = weights.as<float>(), p.logits = view_of(logits);
  p.ids_stride = stride_of(ids), p.weights_stride = stride_of(weights);
  p.n_tokens = static_cast<int32_t>(ids.dim(0)), p.k = static_cast<int32_t>(ids.dim(1));
  p.n_experts = static_cast<int32_t>(logits.dim(1));
  p.status = status();
  SYNOD_ASSERT(p.k <= 32);  // a lane per slot
  if (p.n_tokens > 0) emit(cuda::route(p));
}

void Builder::run(const RouteSoftmax& op) {
  RouteParams p{.mode = 0};
  if (op.expert_scale) p.expert_scale = op.expert_scale.as<float>();
  route(p, op.ids, op.weights, op.logits);
}
void Builder::run(const RouteScores& op) {
  RouteParams p{.mode = 1, .bias = op.bias.as<float>(), .scale = op.scale};
  route(p, op.ids, op.weights, op.logits);
}
void Builder::run(const RouteHash& op) {
  RouteParams p{.mode = 2,
                .token_ids = op.token_ids.as<int32_t>(),
                .table = op.table.as<int32_t>(),
                .table_rows = op.table.dim(0),
                .scale = op.scale};
  route(p, op.ids, op.weights, op.logits);
}

namespace {

// Splits of the longest query of up to `keys` keys, for every length up to it (attention.cu: keys_of).
int64_t most_splits(int64_t keys) {
  int64_t most = std::min<int64_t>(keys, 8192) / kSplitKeys + 2;
  if (keys > 8192) most = std::max(most, std::min<int64_t>(keys, 65536) / (4 * kSplitKeys) + 2);
  if (keys > 65536) most = std::max(most, keys / (16 * kSplitKeys) + 2);
  return most;
}

}  // namespace

void Builder::attention(AttentionParams p, int64_t n_tokens, int64_t longest) {
  if (n_tokens == 0) return;
  if (n_tokens >= kTileTokens && attention_tile_fits(p)) {
    p.n_tokens = static_cast<int32_t>(n_tokens);
    return emit(attention_tile(p));
  }
  SYNOD_ASSERT(p.head_dim % 4 == 0 && p.head_dim <= 1024);
  longest = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest)));
  int64_t keys = p.window > 0 ? std::min<int64_t>(longest, p.window) : longest;
  int64_t splits = most_splits(keys);
  if (p.compressed.pages != nullptr) {
    const int64_t rows = longest / p.ratio + 1;
    splits += most_splits(p.selected != nullptr ? std::min<int64_t>(rows, p.n_selected) : rows);
  }
  p.n_splits = static_cast<int32_t>(splits);
  const int64_t per_token = static_cast<int64_t>(p.n_heads) * splits * (p.head_dim + 4);
  constexpr int64_t kMostValues = 64 << 20;  // of partial results
  const int64_t batch = std::clamp<int64_t>(kMostValues / per_token, 1, n_tokens);
  p.partial = temporary<float>(batch * per_token);
  for (int64_t first = 0; first < n_tokens; first += batch) {
    p.first_token = static_cast<int32_t>(first);
    p.n_tokens = static_cast<int32_t>(std::min(batch, n_tokens - first));
    emit(attention_split(p));
    emit(attention_combine(p));
  }
}

void Builder::run(const Attention& op) {
  AttentionParams p{
      .out = view_of(op.out), .q = view_of(op.q), .k = step_.table(op.k), .v = step_.table(op.v)};
  p.batch = step_.batch(op.batch);
  p.n_heads = static_cast<int32_t>(op.q.dim(1)), p.n_kv_heads = static_cast<int32_t>(op.n_kv_heads);
  p.head_dim = static_cast<int32_t>(op.q.dim(2));
  p.window = static_cast<int32_t>(op.window);
  p.scale = op.scale;
  attention(p, op.q.dim(0), step_.longest(op.batch));
}

void Builder::run(const SparseAttention& op) {
  AttentionParams p{.out = view_of(op.out), .q = view_of(op.q), .k = step_.table(op.window_rows)};
  p.v = p.k;
  p.compressed = step_.table(op.compressed);
  if (op.selected)
    p.selected = op.selected.as<int32_t>(), p.n_selected = static_cast<int32_t>(op.selected.dim(1));
  p.sinks = op.sinks.as<float>();
  p.batch = step_.batch(op.batch);
  p.n_heads = static_cast<int32_t>(op.q.dim(1)), p.n_kv_heads = 1;
  p.head_dim = static_cast<int32_t>(op.q.dim(2));
  p.window = static_cast<int32_t>(op.window), p.ratio = static_cast<int32_t>(op.ratio);
  p.shared_kv = 1;
  p.scale = op.scale;
  attention(p, op.q.dim(0), step_.longest(op.batch));
}

void Builder::run(const IndexSelect& op) {
  IndexParams p{.selected = op.selected.as<int32_t>(), .q = view_of(op.q), .beta = view_of(op.beta)};
  p.keys = step_.table(op.keys);
  p.batch = step_.batch(op.batch);
  p.n_heads = static_cast<int32_t>(op.q.dim(1)), p.head_dim = static_cast<int32_t>(op.q.dim(2));
  p.ratio = static_cast<int32_t>(op.ratio), p.k = static_cast<int32_t>(op.selected.dim(1));
  p.status = status();
  if (p.batch.n_tokens == 0) return;
  const auto longest = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(step_.longest(op.batch))));
  p.max_rows = longest / p.ratio + 1;
  p.scores = temporary<float>(p.batch.n_tokens * p.max_rows);
  if (p.max_rows > p.k) emit(index_scores(p));
  emit(index_top_k(p));
}

}  // namespace synod::cuda
