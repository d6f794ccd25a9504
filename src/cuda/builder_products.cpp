// Products with stored matrices, experts, attention.
#include <algorithm>
#include <array>
#include <bit>

#include "cuda/builder.h"
#include "cuda/views.h"

namespace synod::cuda {

namespace {

constexpr int64_t kFewTokens = 4;  // whose tiles the warps of a block share

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
template <typename Op>
int32_t act_of(const Op& op) {
  return op.act == Glu::Act::kSilu ? 0 : 1;
}

bool tiles_for_experts(const DeviceMatrix& weight, int64_t n, int64_t k) {
  constexpr int64_t kMostSlots = 512;  // that a block of tile_product() sorts
  return takes_tiles(weight) && n * k <= kMostSlots;
}
bool tiles_experts(const ExpertFfn& op, const DeviceMatrix& gate, const DeviceMatrix& up,
                   const DeviceMatrix& down, int64_t n, int64_t k) {
  return tiles_for_experts(gate, n, k) && tiles_for_experts(down, n, k) && gate.codec == up.codec &&
         op.down[0].n_in % 32 == 0;
}

}  // namespace

void Builder::run(const Linear&) { SYNOD_ASSERT(false); }  // fuse_products() takes them
void Builder::run(const Projections&) { SYNOD_ASSERT(false); }

// All products in a row that read one input. A gate after exactly two of them is their epilogue.
size_t Builder::fuse_products() {
  const auto alike = [](const Tensor& a, const Tensor& b) {
    return a.data == b.data && a.rank == b.rank && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1) &&
           a.stride[0] == b.stride[0];
  };
  const Tensor* x = nullptr;
  std::vector<Product> parts;
  size_t taken = 0;
  for (;; ++taken) {
    const auto* linear = op_at<Linear>(index_ + taken);
    const auto* several = op_at<Projections>(index_ + taken);
    if (linear == nullptr && several == nullptr) break;
    const Tensor& input = linear != nullptr ? linear->x : several->x;
    const size_t n = linear != nullptr ? 1 : static_cast<size_t>(several->n_parts);
    if (x != nullptr && (!alike(*x, input) || parts.size() + n > kMaxParts)) break;
    x = &input;
    if (linear != nullptr) parts.push_back({&device(linear->weight), view_of(linear->out)});
    for (size_t i = 0; several != nullptr && i < n; ++i) {
      parts.push_back({&device(several->parts[i].weight), view_of(several->parts[i].out)});
    }
  }
  if (taken == 0 || x->dim(0) == 0) return taken;
  const Rows rows{.view = view_of(*x), .n = x->dim(0)};
  const auto* scale = op_at<Scale>(index_ + taken);
  if (scale != nullptr && !scale->by && rows.n <= kDecodeTokens) {
    const auto part = std::ranges::find_if(
        parts, [&](const Product& product) { return same(product.out, view_of(scale->x)); });
    if (part != parts.end()) part->factor = scale->factor, ++taken;
  }
  const auto* glu = op_at<Glu>(index_ + taken);
  if (glu != nullptr && gated_products(*glu, parts, rows, index_ + taken + 1)) return taken + 1;
  products(parts, rows);
  return taken;
}

// Two matrices of one codec whose outputs a Glu combines in place.
bool Builder::gated_products(const Glu& op, std::span<const Product> parts, const Rows& x, size_t next) {
  if (parts.size() != 2 || op.row_weight) return false;
  if (parts[0].factor != 1.0F || parts[1].factor != 1.0F) return false;
  const DeviceMatrix &gate = *parts[0].weight, &up = *parts[1].weight;
  const bool many = x.n > kDecodeTokens;
  if (many ? !gemm_pairs(gate, up)
           : !takes_tiles(gate) || gate.codec != up.codec || gate.n_out != up.n_out || gate.n_out % 32 != 0)
    return false;
  if (!same(view_of(op.gate), parts[0].out) || !same(view_of(op.up), parts[1].out) ||
      !same(view_of(op.out), parts[0].out)) {
    return false;
  }
  if (many) {
    GemmParams p{.weight = gate, .x = halves(x, false), .out = parts[0].out, .n_tokens = x.n};
    p.rows = gate.n_out;
    p.up = up, p.up_out = parts[1].out;
    p.pair = 1, p.act = act_of(op), p.limit = op.limit;
    emit(gemm(p));
    return true;
  }
  TileParams p{.n_parts = 2, .n_tokens = static_cast<int32_t>(x.n)};
  p.parts[0] = {.weight = gate, .out = parts[0].out};
  p.parts[1] = {.weight = up, .out = parts[1].out};
  p.pair = 1;
  p.act = act_of(op);
  p.limit = op.limit;
  p.digits = digits(x);
  const auto* experts = op_at<ExpertFfn>(next);
  const bool joins = experts != nullptr && joins_experts(p, *experts);
  p.out_digits = digits_for(joins ? next + 1 : next, op.out);
  if (joins) {
    side_ = p;
  } else {
    emit(tile_product(p));
  }
  return true;
}

// Whether the products can share the launch of the experts' gate and up.
bool Builder::joins_experts(const TileParams& pair, const ExpertFfn& op) {
  const int64_t n = op.ids.dim(0), k = op.ids.dim(1);
  if (n != pair.n_tokens || n > kFewTokens || op.shared) return false;
  const DeviceMatrix &gate = device(op.gate), &up = device(op.up), &own = pair.parts[0].weight;
  return tiles_experts(op, gate, up, device(op.down), n, k) && own.codec == gate.codec &&
         own.n_in == gate.n_in && pair.act == act_of(op) && pair.limit == op.limit;
}

// Digits of an op's output, to be written by its launch, when op `next` is a product that reads them.
DigitRows Builder::digits_for(size_t next, const Tensor& out) {
  const auto* linear = op_at<Linear>(next);
  const auto* grouped = op_at<GroupedLinear>(next);
  if (linear == nullptr && grouped == nullptr) return {};
  const Tensor& x = linear != nullptr ? linear->x : grouped->x;
  if (x.data != out.data || x.dim(0) > kDecodeTokens || x.inner() % 32 != 0) return {};
  if (!out.is_contiguous() || !x.is_contiguous() || x.size() != out.size()) return {};
  if (!takes_tiles(device(linear != nullptr ? linear->weight : grouped->weight))) return {};
  return make_digits({.view = view_of(x), .n = x.rows()});
}

// Room for digits that a launch of this op writes.
DigitRows Builder::make_digits(const Rows& x) {
  Cached& c = made_.emplace_back();
  c.view = x.view, c.n = x.n;
  const Extent extent = extent_of(c.view, c.n);
  c.begin = extent.begin, c.end = extent.end;
  c.digits.stride = digit_row_bytes(c.view.d);
  c.memory.push_back(scratch_.take(c.n * c.digits.stride));
  c.digits.p = reinterpret_cast<uint8_t*>(c.memory.back());
  return c.digits;
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
  // Parts of one codec and width share a launch.
  std::vector<bool> done(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (done[i]) continue;
    const DeviceMatrix& first = *parts[i].weight;
    std::array<GemvPart, kMaxParts> shared;
    int32_t n_parts = 0;
    int64_t n_rows = 0;
    for (size_t j = i; j < parts.size(); ++j) {
      if (done[j] || parts[j].weight->codec != first.codec || n_parts == kMaxParts) continue;
      shared[static_cast<size_t>(n_parts++)] = {
          .weight = *parts[j].weight, .out = parts[j].out, .factor = parts[j].factor};
      n_rows += parts[j].weight->n_out;
      done[j] = true;
    }
    if (takes_tiles(first)) {
      TileParams p{.n_parts = n_parts, .n_tokens = static_cast<int32_t>(x.n)};
      std::ranges::copy(shared, p.parts);
      p.digits = digits(x);
      emit(tile_product(p));
      continue;
    }
    GemvParams p{.n_parts = n_parts, .n_tokens = static_cast<int32_t>(x.n), .n_rows = n_rows, .x = x.view};
    std::ranges::copy(shared, p.parts);
    if (uses_digits(first)) p.digits = digits(x);
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
  if (takes_tiles(weight) && rows % kUnitRows == 0) {
    TileParams p{.n_tokens = static_cast<int32_t>(n)};
    p.parts[0] = {.weight = weight, .out = view_of(op.out)};
    p.n_groups = static_cast<int32_t>(groups);
    p.rows_per_group = rows;
    p.digits = digits(x);
    if (n <= kFewTokens && rows % 32 == 0) p.out_digits = digits_for(index_ + 1, op.out);
    return emit(tile_product(p));
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

TileParams Builder::expert_tiles(const Tensor& ids, int64_t n_experts, int64_t rows) const {
  TileParams p{.n_tokens = static_cast<int32_t>(ids.dim(0))};
  p.k = static_cast<int32_t>(ids.dim(1));
  p.ids = ids.as<int32_t>(), p.ids_stride = stride_of(ids);
  p.n_experts = static_cast<int32_t>(n_experts);
  p.rows_per_expert = rows;
  p.status = status();
  return p;
}

// A launch waits for its predecessor, which has waited for everything before it: what is older than the
// predecessor can be read before the wait.
void Builder::emit_experts(TileParams p) {
  flush_rows();
  const auto it = chosen_.find(p.ids);
  p.settled_ids = it == chosen_.end() || launches_.size() - it->second >= 2 ? 1 : 0;
  emit(tile_product(p));
}

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
  if (tiles_for_experts(weight, n, k)) {
    TileParams p = expert_tiles(op.ids, static_cast<int64_t>(op.experts.size()), rows);
    p.parts[0] = {.weight = weight, .out = view_of(op.out)};
    p.x_per_slot = per_slot ? 1 : 0;
    p.digits = digits(x);
    return emit_experts(p);
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
  p.act = act_of(op);
  p.limit = op.limit;
  p.status = status();
  if (op.round_hidden) p.row_weight = op.weights.as<float>(), p.row_weight_stride = stride_of(op.weights);
  const bool tiled = tiles_experts(op, gate, up, down, n, k);
  if (uses_digits(gate)) p.digits = digits(x);
  if (tiled) {
    TileParams t = expert_tiles(op.ids, p.n_experts, d_expert);
    t.n_parts = 2, t.pair = 1;
    t.parts[0] = {.weight = gate, .out = p.out};
    t.parts[1].weight = up;
    t.act = p.act, t.limit = p.limit;
    t.weights = p.row_weight, t.weights_stride = p.row_weight_stride;
    t.digits = p.digits;
    flush_rows();
    if (!op.round_hidden) {
      Cached& c = remember({.view = flat(hidden, d_expert), .n = n * k});
      c.digits.stride = digit_row_bytes(d_expert);
      c.memory.push_back(scratch_.take(c.n * c.digits.stride));
      c.digits.p = reinterpret_cast<uint8_t*>(c.memory.back());
      t.out_digits = c.digits;
    }
    if (side_) {
      t.has_side = 1;
      t.side[0] = side_->parts[0], t.side[1] = side_->parts[1];
      t.side_digits = side_->digits, t.side_out_digits = side_->out_digits;
      side_.reset();
    }
    emit_experts(t);
  } else if (gate.codec == up.codec) {
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
  if (tiled) return combined_experts(op, down, hidden);
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

// Down and the weighted sum over slots: one launch for one token; several tokens share the experts' weights,
// and the sum is a launch of its own in the same order.
void Builder::combined_experts(const ExpertFfn& op, const DeviceMatrix& down, float* hidden) {
  const int64_t n = op.ids.dim(0), k = op.ids.dim(1), d_expert = op.down[0].n_in, d_model = op.out.dim(1);
  TileParams p = expert_tiles(op.ids, static_cast<int64_t>(op.down.size()), d_model);
  const float* weights = op.round_hidden ? nullptr : op.weights.as<float>();
  p.digits = digits({.view = flat(hidden, d_expert), .n = n * k});
  p.parts[0].weight = down;
  if (n == 1 && k <= 32) {  // a lane per slot
    p.sum_slots = 1;
    p.parts[0].out = view_of(op.out);
    p.weights = weights;
    if (op.shared) p.shared = view_of(op.shared);
    return emit_experts(p);
  }
  auto* rows = temporary<float>(n * k * d_model);
  p.parts[0].out = slots(rows, k, d_model);
  p.x_per_slot = 1;
  emit_experts(p);
  CombineParams c{.out = view_of(op.out), .x = slots(rows, k, d_model)};
  if (op.shared) c.shared = view_of(op.shared);
  c.weights = weights, c.weights_stride = stride_of(op.weights);
  c.k = static_cast<int32_t>(k), c.n_tokens = static_cast<int32_t>(n);
  emit(combine_experts(c));
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
  auto* rows = temporary<float>(n * k * d_model);
  if (!op.round_hidden && gemm_pairs(gate, up)) {
    GemmParams p = expert_gemm(gate, input, flat(hidden, d_expert), d_expert, k, false);
    p.up = up, p.pair = 1, p.act = act_of(op), p.limit = op.limit;
    run_tiles(p);
  } else {
    auto* other = temporary<float>(n * k * d_expert);
    run_tiles(expert_gemm(gate, input, flat(hidden, d_expert), d_expert, k, false));
    run_tiles(expert_gemm(up, input, flat(other, d_expert), d_expert, k, false));
    SYNOD_ASSERT(op.weights.is_contiguous());
    append_row_step({.kind = RowStep::kGlu,
                     .act = act_of(op),
                     .dst = flat(hidden, d_expert),
                     .a = flat(hidden, d_expert),
                     .b = flat(other, d_expert),
                     .w = op.round_hidden ? op.weights.as<float>() : nullptr,
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
  if (p.n_tokens == 0) return;
  emit(cuda::route(p));
  chosen_[p.ids] = launches_.size() - 1;
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
  constexpr int64_t kMostValues = 64 << 20;                                              // of partial results
  const int64_t tickets = p.n_heads * (1 + (splits + kGroupSplits - 1) / kGroupSplits);  // of a token
  SYNOD_ASSERT(tickets <= kMostTickets);
  const int64_t batch =
      std::clamp<int64_t>(std::min(kMostValues / per_token, kMostTickets / tickets), 1, n_tokens);
  p.tickets = tickets_;
  p.partial = temporary<float>(batch * per_token);
  for (int64_t first = 0; first < n_tokens; first += batch) {
    p.first_token = static_cast<int32_t>(first);
    p.n_tokens = static_cast<int32_t>(std::min(batch, n_tokens - first));
    emit(attention_split(p));
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
  attention_digits(p, index_ + 1, op.out);
  attention(p, op.q.dim(0), step_.longest(op.batch));
}

void Builder::attention_digits(AttentionParams& p, size_t next, const Tensor& out) {
  if (out.dim(0) > kDecodeTokens || p.head_dim % 32 != 0) return;
  const auto* grouped = op_at<GroupedLinear>(next);
  const int64_t groups = grouped == nullptr ? 1 : grouped->x.dim(1);
  if (p.n_heads % groups != 0) return;
  p.digits = digits_for(next, out);
  p.digit_heads = p.n_heads / static_cast<int32_t>(groups);
}

void Builder::run(const SparseAttention&) { SYNOD_ASSERT(false); }  // fuse_attention() takes them

// SparseAttention and the rotation of its results.
size_t Builder::fuse_attention() {
  const auto* sparse = op_at<SparseAttention>(index_);
  if (sparse == nullptr) return 0;
  const SparseAttention& op = *sparse;
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
  size_t taken = 1;
  const auto* turn = op_at<Rope>(index_ + 1);
  if (turn != nullptr && op.q.dim(0) <= kDecodeTokens && turn->x.rank == op.out.rank &&
      same(view_of(turn->x), p.out) && turn->inverse && turn->layout == Rope::Layout::kInterleaved &&
      turn->first % 2 == 0 && turn->freqs.dim(0) <= kMostTurns && settled(turn->positions)) {
    p.turn_positions = turn->positions.as<int32_t>();
    p.turn_freqs = turn->freqs.as<float>();
    p.turn_pairs = static_cast<int32_t>(turn->freqs.dim(0));
    p.turn_first = static_cast<int32_t>(turn->first);
    taken = 2;
  }
  attention_digits(p, index_ + taken, op.out);
  attention(p, op.q.dim(0), step_.longest(op.batch));
  return taken;
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
  SYNOD_ASSERT(p.head_dim % 4 == 0 && p.q.s0 % 4 == 0 && p.q.s1 % 4 == 0);
  p.scores = temporary<float>(p.batch.n_tokens * p.max_rows);
  if (p.max_rows > p.k) emit(index_scores(p));
  emit(index_top_k(p));
}

}  // namespace synod::cuda
