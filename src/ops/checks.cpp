// check() of every op.
#include "ops/attention.h"
#include "ops/check.h"
#include "ops/compress.h"
#include "ops/elementwise.h"
#include "ops/experts.h"
#include "ops/hyper_connection.h"
#include "ops/linear.h"

namespace synod {
namespace {

bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

void check_routing(const Checker& c, const Tensor& ids, const Tensor& weights, const Tensor& logits) {
  c.i32("ids", ids, {-1, -1});
  c.f32("weights", weights, {ids.dim(0), ids.dim(1)});
  c.f32("logits", logits, {ids.dim(0), -1});
  c.that(ids.dim(1) >= 1 && ids.dim(1) <= logits.dim(1), "1 <= experts used <= experts");
}

void check_experts(const Checker& c, std::string_view operand, std::span<const Matrix> experts, int64_t n_out,
                   int64_t n_in) {
  c.that(!experts.empty(), "there is at least one expert");
  // Bound together, with one shape: looking at hundreds of them per layer and step takes longer than all
  // else.
  for (const Matrix* m : {&experts.front(), &experts.back()}) c.matrix(operand, *m, n_out, n_in);
}

}  // namespace

void Linear::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, weight.n_in});
  c.f32("out", out, {x.dim(0), weight.n_out});
  c.matrix("weight", weight, out.dim(1), x.dim(1));
}

void Projections::check() const {
  const Checker c(kName);
  c.that(n_parts >= 1 && n_parts <= static_cast<int>(parts.size()), "there are 1 to 4 parts");
  for (int i = 0; i < n_parts; ++i) {
    const Part& p = parts[static_cast<size_t>(i)];
    Linear{.out = p.out, .x = x, .weight = p.weight}.check();
  }
}

void GroupedLinear::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1, weight.n_in});
  c.f32("out", out, {x.dim(0), x.dim(1), -1});
  c.matrix("weight", weight, out.dim(1) * out.dim(2), x.dim(2));
}

void Embed::check() const {
  const Checker c(kName);
  c.i32("ids", ids, {-1});
  c.f32("out", out, {ids.dim(0), table.n_in});
  c.matrix("table", table, -1, out.dim(1));
}

void RmsNorm::check() const {
  const Checker c(kName);
  c.any_f32("x", x);
  c.same_shape("out", out, x);
  if (weight) c.f32("weight", weight, {x.inner()});
}

void Rope::check() const {
  const Checker c(kName);
  c.any_f32("x", x);
  c.that(x.rank == 2 || x.rank == 3, "x is [n_tokens, d] or [n_tokens, n_heads, d]");
  c.i32("positions", positions, {x.dim(0)});
  c.f32("freqs", freqs, {-1});
  c.that(first >= 0 && first + 2 * freqs.dim(0) <= x.inner(), "the rotated pairs lie inside a head");
}

void Glu::check() const {
  const Checker c(kName);
  c.any_f32("gate", gate);
  c.same_shape("up", up, gate);
  c.same_shape("out", out, gate);
  if (row_weight) {
    c.any_f32("row_weight", row_weight);
    c.that(row_weight.size() == gate.rows(), "there is one weight per row");
  }
}

void Add::check() const {
  const Checker c(kName);
  c.any_f32("a", a);
  c.same_shape("b", b, a);
  c.same_shape("out", out, a);
}

void Scale::check() const {
  const Checker c(kName);
  c.any_f32("x", x);
  if (by) c.f32("by", by, {1});
}

void SoftCap::check() const {
  const Checker c(kName);
  c.any_f32("x", x);
  c.that(cap > 0.0F, "cap is positive");
}

void ArgMax::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1});
  c.i32("out", out, {x.dim(0)});
}

void GatherRows::check() const {
  const Checker c(kName);
  c.i32("rows", rows, {-1});
  c.any_f32("x", x);
  c.any_f32("out", out);
  bool same = x.rank >= 2 && out.rank == x.rank && out.dim(0) == rows.dim(0);
  for (int i = 1; same && i < x.rank; ++i) same = out.dim(i) == x.dim(i);
  c.that(same, "out has the rows' shape of x");
}

void RoundTrip::check() const {
  const Checker c(kName);
  c.any_f32("x", x);
  c.same_shape("out", out, x);
  c.that(block >= 1, "block is at least 1");
  c.that(count >= 0 && count <= x.inner(), "count lies inside a row");
}

void Hadamard::check() const {
  const Checker c(kName);
  c.any_f32("x", x);
  c.that(is_power_of_two(x.inner()), "the width is a power of two");
}

void RouteSoftmax::check() const {
  const Checker c(kName);
  check_routing(c, ids, weights, logits);
  if (expert_scale) c.f32("expert_scale", expert_scale, {logits.dim(1)});
}

void RouteScores::check() const {
  const Checker c(kName);
  check_routing(c, ids, weights, logits);
  c.f32("bias", bias, {logits.dim(1)});
}

void RouteHash::check() const {
  const Checker c(kName);
  check_routing(c, ids, weights, logits);
  c.i32("token_ids", token_ids, {ids.dim(0)});
  c.i32("table", table, {-1, ids.dim(1)});
}

void ExpertLinear::check() const {
  const Checker c(kName);
  c.i32("ids", ids, {-1, -1});
  c.f32("out", out, {ids.dim(0), ids.dim(1), -1});
  c.any_f32("x", x);
  if (x.rank == 3) {
    c.f32("x", x, {ids.dim(0), ids.dim(1), -1});
  } else {
    c.f32("x", x, {ids.dim(0), -1});
  }
  check_experts(c, "experts", experts, out.dim(2), x.inner());
}

void CombineExperts::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1, -1});
  c.f32("out", out, {x.dim(0), x.dim(2)});
  if (weights) c.f32("weights", weights, {x.dim(0), x.dim(1)});
  if (shared) c.f32("shared", shared, {x.dim(0), x.dim(2)});
}

void ExpertFfn::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1});
  c.f32("out", out, {x.dim(0), x.dim(1)});
  c.i32("ids", ids, {x.dim(0), -1});
  c.f32("weights", weights, {x.dim(0), ids.dim(1)});
  if (shared) c.f32("shared", shared, {x.dim(0), x.dim(1)});
  c.that(gate.size() == up.size() && gate.size() == down.size(), "gate, up and down have the same experts");
  check_experts(c, "down", down, x.dim(1), -1);
  check_experts(c, "gate", gate, down[0].n_in, x.dim(1));
  check_experts(c, "up", up, down[0].n_in, x.dim(1));
}

void CacheWrite::check() const {
  const Checker c(kName);
  c.that(batch != nullptr && tokens_per_row >= 1, "there is a batch and tokens_per_row is at least 1");
  const int64_t n = tokens_per_row == 1 ? batch->n_tokens() : closed_blocks(*batch, tokens_per_row);
  c.f32("x", x, {n, -1});
  c.rows("rows", rows, x.dim(1));
}

void Attention::check() const {
  const Checker c(kName);
  c.that(batch != nullptr, "there is a batch");
  c.f32("q", q, {batch->n_tokens(), -1, -1});
  c.same_shape("out", out, q);
  c.that(n_kv_heads >= 1 && q.dim(1) % n_kv_heads == 0, "query heads are a multiple of key/value heads");
  c.that(window >= 0, "window is not negative");
  c.rows("k", k, n_kv_heads * q.dim(2));
  c.rows("v", v, n_kv_heads * q.dim(2));
}

void SparseAttention::check() const {
  const Checker c(kName);
  c.that(batch != nullptr, "there is a batch");
  c.f32("q", q, {batch->n_tokens(), -1, -1});
  c.same_shape("out", out, q);
  c.f32("sinks", sinks, {q.dim(1)});
  c.that(window >= 1, "window is at least 1");
  c.rows("window_rows", window_rows, q.dim(2));
  if (compressed) {
    c.rows("compressed", compressed, q.dim(2));
    c.that(ratio >= 1, "ratio is at least 1");
  }
  if (selected) {
    c.that(static_cast<bool>(compressed), "selected rows come with compressed rows");
    c.i32("selected", selected, {batch->n_tokens(), -1});
  }
}

void IndexSelect::check() const {
  const Checker c(kName);
  c.that(batch != nullptr && ratio >= 1, "there is a batch and ratio is at least 1");
  c.f32("q", q, {batch->n_tokens(), -1, -1});
  c.f32("beta", beta, {q.dim(0), q.dim(1)});
  c.i32("selected", selected, {q.dim(0), -1});
  c.rows("keys", keys, q.dim(2));
}

void HcExpand::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1});
  c.f32("out", out, {x.dim(0), -1, x.dim(1)});
}

void HcMix::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1, -1});
  const int64_t t = x.dim(0), n = x.dim(1), mixes = 2 * n + n * n;
  c.f32("pre", pre, {t, n});
  c.f32("post", post, {t, n});
  c.f32("comb", comb, {t, n, n});
  c.matrix("fn", fn, mixes, n * x.dim(2));
  c.f32("base", base, {mixes});
  c.f32("scale", scale, {3});
  c.that(iterations >= 1, "iterations is at least 1");
}

void HcHeadMix::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1, -1});
  c.f32("weights", weights, {x.dim(0), x.dim(1)});
  c.matrix("fn", fn, x.dim(1), x.dim(1) * x.dim(2));
  c.f32("base", base, {x.dim(1)});
  c.f32("scale", scale, {1});
}

void HcCollapse::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1, -1});
  c.f32("out", out, {x.dim(0), x.dim(2)});
  c.f32("weights", weights, {x.dim(0), x.dim(1)});
}

void HcPost::check() const {
  const Checker c(kName);
  c.f32("x", x, {-1, -1, -1});
  c.same_shape("out", out, x);
  c.f32("y", y, {x.dim(0), x.dim(2)});
  c.f32("post", post, {x.dim(0), x.dim(1)});
  c.f32("comb", comb, {x.dim(0), x.dim(1), x.dim(1)});
  c.that(out.data == nullptr || out.data != x.data, "out is not x");
}

void CompressPool::check() const {
  const Checker c(kName);
  c.that(batch != nullptr && ratio >= 1, "there is a batch and ratio is at least 1");
  c.f32("out", out, {closed_blocks(*batch, ratio), -1});
  c.rows("state", state, 2 * (overlap ? 2 : 1) * out.dim(1));
  c.that(state.type == DType::kF32, "state rows are f32");
}

void Compress::check() const {
  const Checker c(kName);
  c.that(batch != nullptr && ratio >= 1, "there is a batch and ratio is at least 1");
  c.f32("norm", norm, {rows.row_dim});
  c.f32("freqs", freqs, {-1});
  c.that(2 * freqs.dim(0) <= rows.row_dim, "the rotated pairs lie inside a row");
  c.rows("state", state, 2 * (overlap ? 2 : 1) * rows.row_dim);
  c.that(round != Round::kHadamardFp4 || is_power_of_two(rows.row_dim), "the width is a power of two");
}

}  // namespace synod
