// Element-wise ops, norms, heads, cache rows.
#include <algorithm>

#include "cuda/builder.h"
#include "cuda/views.h"

namespace synod::cuda {

void Builder::run(const RmsNorm& op) {
  append_row_step({.kind = RowStep::kNorm,
                   .dst = view_of(op.out),
                   .a = view_of(op.x),
                   .w = op.weight ? op.weight.as<float>() : nullptr,
                   .eps = op.eps,
                   .factor = op.factor},
                  op.x.rows(), view_of(op.x).d);
  if (feeds_tiles(op.out, index_ + 1)) {
    const Rows rows{.view = view_of(op.out), .n = op.out.dim(0)};
    append_row_step({.kind = RowStep::kDigits, .a = rows.view, .digits = make_digits(rows)}, rows.n,
                    rows.view.d);
  }
}

// Whether a product from op `next` on that comes soon reads the rows as digits, which the launch that makes
// the rows then writes as well.
bool Builder::feeds_tiles(const Tensor& rows, size_t next) {
  if (rows.rank != 2 || rows.dim(0) > kDecodeTokens || view_of(rows).d % 32 != 0) return false;
  constexpr size_t kSoon = 10;
  const auto reads = [&](const Tensor& x) {
    return same(view_of(x), view_of(rows)) && x.dim(0) == rows.dim(0);
  };
  for (size_t i = next; i < next + kSoon && i < step_.ops().size(); ++i) {
    if (const auto* linear = op_at<Linear>(i); linear != nullptr && reads(linear->x)) {
      if (uses_digits(device(linear->weight))) return true;
    }
    if (const auto* several = op_at<Projections>(i); several != nullptr && reads(several->x)) {
      if (uses_digits(device(several->parts[0].weight))) return true;
    }
    if (const auto* experts = op_at<ExpertFfn>(i); experts != nullptr && reads(experts->x)) {
      if (uses_digits(device(experts->gate))) return true;
    }
    if (writes(i, rows)) return false;
  }
  return false;
}

void Builder::run(const Add& op) {
  append_row_step({.kind = RowStep::kAdd,
                   .dst = view_of(op.out),
                   .a = view_of(op.a),
                   .b = view_of(op.b),
                   .factor = op.factor},
                  op.a.rows(), view_of(op.a).d);
}

void Builder::run(const Scale& op) {
  append_row_step({.kind = RowStep::kScale,
                   .dst = view_of(op.x),
                   .a = view_of(op.x),
                   .w = op.by ? op.by.as<float>() : nullptr,
                   .factor = op.factor},
                  op.x.rows(), view_of(op.x).d);
}

void Builder::run(const SoftCap& op) {
  append_row_step({.kind = RowStep::kSoftCap, .dst = view_of(op.x), .a = view_of(op.x), .factor = op.cap},
                  op.x.rows(), view_of(op.x).d);
}

void Builder::run(const Glu& op) {
  // Row weights are indexed by the flat row.
  SYNOD_ASSERT(!op.row_weight || op.row_weight.is_contiguous());
  append_row_step({.kind = RowStep::kGlu,
                   .act = op.act == Glu::Act::kSilu ? 0 : 1,
                   .dst = view_of(op.out),
                   .a = view_of(op.gate),
                   .b = view_of(op.up),
                   .w = op.row_weight ? op.row_weight.as<float>() : nullptr,
                   .limit = op.limit},
                  op.gate.rows(), view_of(op.gate).d);
}

void Builder::run(const Rope& op) {
  if (op.x.size() == 0) return;
  emit(rope({.x = view_of(op.x),
             .n_rows = op.x.rows(),
             .positions = op.positions.as<int32_t>(),
             .freqs = op.freqs.as<float>(),
             .n_pairs = static_cast<int32_t>(op.freqs.dim(0)),
             .first = static_cast<int32_t>(op.first),
             .interleaved = op.layout == Rope::Layout::kInterleaved ? 1 : 0,
             .inverse = op.inverse ? 1 : 0}));
}

// Norms, rotations and cache writes of up to three tensors of heads. An item follows the order norm,
// rotation, write; items that share memory are one warp's, in turn, so an item may read what a later one
// overwrites.
size_t Builder::fuse_heads() {
  HeadProgram p;
  const Rope* rotation = nullptr;
  const BatchView* batch = nullptr;
  int64_t n_tokens = -1;
  size_t taken = 0;
  const auto heads_of = [](const Tensor& t) { return t.rank == 3 ? t.dim(1) : 1; };
  const auto item_of = [&](const Tensor& t) -> HeadItem* {
    for (int i = 0; i < p.n_items; ++i) {
      if (p.items[i].out.p == t.as<float>()) return &p.items[i];
    }
    return nullptr;
  };
  const auto add_item = [&](const Tensor& out, const Tensor& x) -> HeadItem* {
    if (p.n_items == 3 || out.rank < 2 || out.rank > 3 || out.size() == 0) return nullptr;
    if (n_tokens >= 0 && out.dim(0) != n_tokens) return nullptr;
    if (!out.is_contiguous() || !x.is_contiguous()) return nullptr;
    n_tokens = out.dim(0);
    HeadItem& item = p.items[p.n_items++];
    item = {};
    item.out = view_of(out);
    if (out.rank == 2) item.out.s1 = 0;
    item.x = x.as<float>();
    item.n_heads = static_cast<int32_t>(heads_of(out));
    p.max_heads = std::max(p.max_heads, item.n_heads);
    p.widest = std::max(p.widest, item.out.d);
    return &item;
  };
  for (size_t i = index_;; ++i, ++taken) {
    if (const auto* norm = op_at<RmsNorm>(i)) {
      // A norm of plain rows belongs to a row program, unless a rotation follows.
      const auto* next = op_at<Rope>(i + 1);
      if (norm->out.rank == 2 && (next == nullptr || next->x.data != norm->out.data || next->inverse)) break;
      if (norm->out.rank > 3 || item_of(norm->out) != nullptr) break;
      HeadItem* item = add_item(norm->out, norm->x);
      if (item == nullptr) break;
      item->norm = 1;
      item->weight = norm->weight ? norm->weight.as<float>() : nullptr;
      item->eps = norm->eps, item->factor = norm->factor;
    } else if (const auto* turn = op_at<Rope>(i)) {
      if (turn->inverse) break;
      const bool alike = rotation == nullptr ||
                         (rotation->positions.data == turn->positions.data &&
                          rotation->freqs.data == turn->freqs.data && rotation->layout == turn->layout);
      HeadItem* item = item_of(turn->x);
      if (!alike || (item != nullptr && (item->rotate != 0 || item->store != 0))) break;
      if (item == nullptr) item = add_item(turn->x, turn->x);
      if (item == nullptr) break;
      rotation = turn;
      item->rotate = 1, item->first = static_cast<int32_t>(turn->first);
    } else if (const auto* write = op_at<CacheWrite>(i)) {
      HeadItem* item = item_of(write->x);
      if (item == nullptr || item->store != 0 || write->tokens_per_row != 1) break;
      if (batch != nullptr && batch != write->batch) break;
      if (write->rows.row_dim != item->n_heads * item->out.d) break;
      if (is_block_type(write->rows.type) && item->out.d % 32 != 0) break;
      batch = write->batch;
      item->store = 1;
      item->rows = step_.table(write->rows);
    } else {
      break;
    }
  }
  if (taken < 2 || p.n_items == 0) return 0;
  p.n_tokens = static_cast<int32_t>(n_tokens);
  const auto memory_of = [&](const HeadItem& item, float* begin) {
    View v = item.out;
    v.p = begin;
    return extent_of(v, n_tokens * item.n_heads);
  };
  for (int i = 0; i < p.n_items; ++i) {
    HeadItem& item = p.items[i];
    item.chain = p.n_chains;
    for (int j = 0; j < i; ++j) {
      const HeadItem& other = p.items[j];
      const Extent out = memory_of(other, other.out.p), in = memory_of(other, const_cast<float*>(other.x));
      const bool apart = !memory_of(item, item.out.p).overlaps(out) &&
                         !memory_of(item, item.out.p).overlaps(in) &&
                         !memory_of(item, const_cast<float*>(item.x)).overlaps(out);
      if (apart) continue;
      const int32_t merged = item.chain == p.n_chains ? other.chain : std::min(item.chain, other.chain);
      for (int k = 0; k <= i; ++k) {
        if (k == i || p.items[k].chain == other.chain || p.items[k].chain == item.chain)
          p.items[k].chain = merged;
      }
    }
    if (item.chain == p.n_chains) ++p.n_chains;
  }
  if (rotation != nullptr) {
    p.positions = rotation->positions.as<int32_t>();
    p.freqs = rotation->freqs.as<float>();
    p.n_pairs = static_cast<int32_t>(rotation->freqs.dim(0));
    p.interleaved = rotation->layout == Rope::Layout::kInterleaved ? 1 : 0;
  }
  if (batch != nullptr) p.batch = step_.batch(batch);
  p.status = status();
  emit(head_program(p));
  return taken;
}

void Builder::run(const RoundTrip& op) {
  if (op.x.size() == 0) return;
  emit(round_trip({.out = view_of(op.out),
                   .x = view_of(op.x),
                   .n_rows = op.x.rows(),
                   .fp4 = op.grid == RoundTrip::Grid::kFp4 ? 1 : 0,
                   .block = static_cast<int32_t>(op.block),
                   .count = static_cast<int32_t>(op.count)}));
}

void Builder::run(const Hadamard& op) {
  if (op.x.size() > 0) emit(hadamard({.x = view_of(op.x), .n_rows = op.x.rows()}));
}

void Builder::run(const ArgMax& op) {
  ArgMaxParams p{
      .out = op.out.as<int32_t>(), .x = view_of(op.x), .n_rows = static_cast<int32_t>(op.x.dim(0))};
  if (p.n_rows == 0) return;
  constexpr int32_t kValuesPerPart = 2048, kMostParts = 256;
  p.n_parts = std::clamp((p.x.d + kValuesPerPart - 1) / kValuesPerPart, 1, kMostParts);
  p.partial = temporary<uint64_t>(static_cast<int64_t>(p.n_rows) * p.n_parts);
  p.status = status();
  emit(arg_max_parts(p));
  emit(arg_max_final(p));
}

void Builder::run(const GatherRows& op) {
  GatherParams p{.out = view_of(op.out), .x = view_of(op.x), .rows = op.rows.as<int32_t>()};
  p.n = static_cast<int32_t>(op.rows.dim(0));
  p.per_row = op.x.rank == 3 ? static_cast<int32_t>(op.x.dim(1)) : 1;
  p.n_tokens = static_cast<int32_t>(op.x.dim(0));
  p.status = status();
  if (p.n > 0) emit(gather_rows(p));
}

void Builder::run(const Embed& op) {
  if (op.ids.dim(0) == 0) return;
  emit(embed({.out = view_of(op.out),
              .ids = op.ids.as<int32_t>(),
              .table = device(op.table),
              .scale = op.scale,
              .n_tokens = static_cast<int32_t>(op.ids.dim(0)),
              .status = status()}));
}

void Builder::run(const CacheWrite& op) {
  if (op.x.dim(0) == 0) return;
  emit(cache_write({.rows = step_.table(op.rows),
                    .x = view_of(op.x),
                    .batch = step_.batch(op.batch),
                    .tokens_per_row = static_cast<int32_t>(op.tokens_per_row),
                    .n_rows = static_cast<int32_t>(op.x.dim(0)),
                    .status = status()}));
}

namespace {

HcPostParams post_params(const HcPost& op) {
  SYNOD_ASSERT(op.x.dim(1) <= 8);
  return {.out = view_of(op.out),
          .x = view_of(op.x),
          .y = view_of(op.y),
          .post = op.post.as<float>(),
          .comb = op.comb.as<float>(),
          .n_tokens = static_cast<int32_t>(op.x.dim(0)),
          .n_streams = static_cast<int32_t>(op.x.dim(1))};
}

}  // namespace

// HcPost of the site before, HcMix, the collapse by its weights and the norm of the result.
size_t Builder::fuse_hyper() {
  const auto* post = op_at<HcPost>(index_);
  const size_t first = post == nullptr ? 0 : 1;  // op of the mix
  const auto* mix = op_at<HcMix>(index_ + first);
  if (mix == nullptr) return 0;
  if (post != nullptr && !(mix->x.dim(0) < kHcTokens && post->out.rank == mix->x.rank &&
                           post->out.dim(0) == mix->x.dim(0) && same(view_of(post->out), view_of(mix->x)))) {
    return 0;
  }
  label_ = step_.ops()[index_ + first].label;
  constexpr int64_t kWidest = 8192;  // the workers of hc_weights hold a row in registers
  const auto* collapse = op_at<HcCollapse>(index_ + first + 1);
  if (collapse != nullptr && (collapse->x.data != mix->x.data || collapse->weights.data != mix->pre.data ||
                              collapse->x.dim(2) > kWidest)) {
    collapse = nullptr;
  }
  const auto* norm = collapse == nullptr ? nullptr : op_at<RmsNorm>(index_ + first + 2);
  // The collapse itself is not kept, so the norm must replace it.
  if (norm != nullptr &&
      (norm->x.data != collapse->out.data || norm->out.data != norm->x.data || norm->factor != 1.0F)) {
    norm = nullptr;
  }
  const size_t taken = first + (collapse == nullptr ? 1 : norm == nullptr ? 2 : 3);
  DigitRows normed;
  if (norm != nullptr && feeds_tiles(norm->out, index_ + taken)) {
    normed = make_digits({.view = view_of(norm->out), .n = norm->out.dim(0)});
  }
  hyper_mix(*mix, post, collapse, norm, normed);
  return taken;
}

void Builder::hyper_mix(const HcMix& op, const HcPost* post, const HcCollapse* collapse, const RmsNorm* norm,
                        const DigitRows& normed) {
  if (op.x.dim(0) == 0) return;
  const DeviceMatrix& fn = device(op.fn, true);
  SYNOD_ASSERT(fn.codec == Codec::kF32 && op.x.dim(1) <= 8);
  HcParams p{
      .x = view_of(op.x), .fn = reinterpret_cast<const float*>(fn.plane[0]), .fn_stride = fn.stride[0] / 4};
  p.n_tokens = static_cast<int32_t>(op.x.dim(0));
  p.n_streams = static_cast<int32_t>(op.x.dim(1));
  p.n_mixes = static_cast<int32_t>(op.fn.n_out);
  p.partial = temporary<float>(static_cast<int64_t>(p.n_tokens) * kHcSplits * (p.n_mixes + 1));
  p.base = op.base.as<float>();
  p.scale = op.scale.as<float>();
  p.pre = op.pre.as<float>(), p.post = op.post.as<float>(), p.comb = op.comb.as<float>();
  p.norm_eps = op.norm_eps, p.eps = op.eps;
  p.iterations = static_cast<int32_t>(op.iterations);
  if (post != nullptr) p.before = post_params(*post);
  if (collapse != nullptr) p.collapsed = view_of(collapse->out);
  if (norm != nullptr) {
    p.normed = view_of(norm->out);
    p.norm = norm->weight ? norm->weight.as<float>() : nullptr;
    p.out_eps = norm->eps;
    p.digits = normed;
  }
  emit(hc_products(p));
  emit(hc_weights(p));
}

void Builder::run(const HcMix&) { SYNOD_ASSERT(false); }  // fuse_hyper() takes them

void Builder::run(const HcHeadMix& op) {
  if (op.x.dim(0) == 0) return;
  const DeviceMatrix& fn = device(op.fn, true);
  SYNOD_ASSERT(fn.codec == Codec::kF32 && op.x.dim(1) <= 8);
  HcParams p{
      .x = view_of(op.x), .fn = reinterpret_cast<const float*>(fn.plane[0]), .fn_stride = fn.stride[0] / 4};
  p.n_tokens = static_cast<int32_t>(op.x.dim(0));
  p.n_streams = static_cast<int32_t>(op.x.dim(1));
  p.n_mixes = static_cast<int32_t>(op.fn.n_out);
  p.partial = temporary<float>(static_cast<int64_t>(p.n_tokens) * kHcSplits * (p.n_mixes + 1));
  p.base = op.base.as<float>();
  p.scale = op.scale.as<float>();
  p.pre = op.weights.as<float>();
  p.norm_eps = op.norm_eps, p.eps = op.eps;
  p.head = 1;
  emit(hc_products(p));
  emit(hc_weights(p));
}

void Builder::run(const HcExpand& op) {
  if (op.x.dim(0) == 0) return;
  emit(hc_rows({.out = view_of(op.out),
                .x = view_of(op.x),
                .n_tokens = static_cast<int32_t>(op.x.dim(0)),
                .n_streams = static_cast<int32_t>(op.out.dim(1)),
                .expand = 1}));
}

void Builder::run(const HcCollapse& op) {
  if (op.x.dim(0) == 0) return;
  emit(hc_rows({.out = view_of(op.out),
                .x = view_of(op.x),
                .weights = op.weights.as<float>(),
                .n_tokens = static_cast<int32_t>(op.x.dim(0)),
                .n_streams = static_cast<int32_t>(op.x.dim(1))}));
}

void Builder::run(const HcPost& op) {
  if (op.x.dim(0) > 0) emit(hc_post(post_params(op)));
}

}  // namespace synod::cuda
