// One forward call, top to bottom. The residual stream and all element-wise arithmetic are f32; weights are
// used as they are stored.
#include <cmath>

#include "models/gemma4/model.h"

namespace synod::gemma4 {

struct Gemma4::Step {
  const BatchView& batch;
  const KvView& kv;
  Backend& be;
  Workspace& ws;
  int64_t n;   // tokens of this call
  Tensor ple;  // f32 [n, n_layers * d_ple], or absent
};

struct Gemma4::Routed {
  Tensor x, router_x;  // the residual, normed for the experts and for the router
  Tensor out;
  Tensor ids, weights;
};

namespace {

Tensor view(const std::vector<float>& values, std::string_view name) {
  return Tensor::contiguous(const_cast<float*>(values.data()), DType::kF32,
                            {static_cast<int64_t>(values.size())}, name);
}

float inverse_sqrt(int64_t width) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(width))); }

void tap(const ForwardRequest& request, int64_t index, const Tensor& hidden) {
  if (request.tap) request.tap(index, hidden);
}

}  // namespace

void Gemma4::forward(const BatchView& batch, const KvView& kv, Backend& be,
                     const ForwardRequest& request) const {
  const Workspace::Scope scope(be.workspace());
  Step step{batch, kv, be, be.workspace(), batch.n_tokens(), {}};
  const Tensor h = embed(step);
  tap(request, 0, h);
  if (config_.d_ple > 0) step.ple = per_layer_inputs(step, h);
  for (int64_t i = 0; i < config_.n_layers(); ++i) {
    layer(step, i, h);
    if (i + 1 < config_.n_layers()) tap(request, i + 1, h);
  }
  head(step, h, request);
}

// h = E[token] * sqrt(d_model)
Tensor Gemma4::embed(Step& step) const {
  const Stage stage(step.be, -1, "embed");
  const Tensor h = step.ws.f32({step.n, config_.d_model}, "h");
  step.be(Embed{.out = h,
                .ids = step.batch.ids,
                .table = embedding_,
                .scale = std::sqrt(static_cast<float>(config_.d_model))});
  return h;
}

// p[l] = (norm((h @ W)[l] / sqrt(d_model)) + T[token, l] * sqrt(d_ple)) / sqrt(2), for all layers at once
Tensor Gemma4::per_layer_inputs(Step& step, const Tensor& h) const {
  const Stage stage(step.be, -1, "ple");
  const int64_t width = config_.n_layers() * config_.d_ple;
  const Tensor p = step.ws.f32({step.n, width}, "ple");
  const Workspace::Scope scope(step.ws);
  const Tensor rows = step.ws.f32({step.n, width}, "ple_rows");
  step.be(Embed{.out = rows,
                .ids = step.batch.ids,
                .table = ple_table_,
                .scale = std::sqrt(static_cast<float>(config_.d_ple))});
  step.be(Linear{.out = p, .x = h, .weight = ple_model_projection_});
  step.be(Scale{.x = p, .by = {}, .factor = inverse_sqrt(config_.d_model)});
  const Tensor by_layer = p.reshape({step.n, config_.n_layers(), config_.d_ple});
  step.be(RmsNorm{.out = by_layer, .x = by_layer, .weight = ple_norm_, .eps = config_.rms_eps});
  step.be(Add{.out = p, .a = p, .b = rows, .factor = static_cast<float>(std::sqrt(0.5))});
  return p;
}

void Gemma4::layer(Step& step, int64_t index, const Tensor& h) const {
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  attention(step, index, h);
  feed_forward(step, index, h);
  if (config_.d_ple > 0) per_layer_input(step, index, h);
  // The whole stream, residual included.
  const Stage stage(step.be, index, "ffn");
  if (w.layer_scale) step.be(Scale{.x = h, .by = w.layer_scale});
}

// h += norm(attention(norm(h)) @ Wo)
void Gemma4::attention(Step& step, int64_t index, const Tensor& h) const {
  const Stage stage(step.be, index, "attention");
  const Workspace::Scope scope(step.ws);
  const LayerConfig& layer = config_.layer(index);
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  Backend& be = step.be;
  const int64_t n = step.n, d = layer.head_dim, n_heads = config_.n_heads, n_kv = layer.n_kv_heads;
  const Tensor freqs = layer.sliding ? view(sliding_frequencies_, "sliding_frequencies")
                                     : view(full_frequencies_, "full_frequencies");
  const CacheRows k_rows = step.kv.rows(w.k_group, layer.donor);
  const CacheRows v_rows = step.kv.rows(w.v_group, layer.donor);

  const Tensor x = step.ws.f32({n, config_.d_model}, "x");
  be(RmsNorm{.out = x, .x = h, .weight = w.attn_norm, .eps = config_.rms_eps});
  const Tensor q = step.ws.f32({n, n_heads * d}, "q");
  if (layer.owns_kv) {
    const Tensor k = step.ws.f32({n, n_kv * d}, "k");
    const Tensor v = step.ws.f32({n, n_kv * d}, "v");
    project_qkv(step, index, x, q, k, v);
    const Tensor k_heads = k.reshape({n, n_kv, d});
    const Tensor v_heads = v.reshape({n, n_kv, d});
    // Without a value projection the raw keys are the values: before the key norm and the rotation.
    const Tensor raw = layer.k_eq_v ? k_heads : v_heads;
    be(RmsNorm{.out = v_heads, .x = raw, .weight = {}, .eps = config_.rms_eps});
    be(RmsNorm{.out = k_heads, .x = k_heads, .weight = w.k_norm, .eps = config_.rms_eps});
    be(Rope{.x = k_heads, .positions = step.batch.positions, .freqs = freqs});
    be(CacheWrite{.rows = k_rows, .x = k, .batch = &step.batch});
    be(CacheWrite{.rows = v_rows, .x = v, .batch = &step.batch});
  } else {
    be(Linear{.out = q, .x = x, .weight = w.q});
  }
  const Tensor q_heads = q.reshape({n, n_heads, d});
  be(RmsNorm{.out = q_heads, .x = q_heads, .weight = w.q_norm, .eps = config_.rms_eps});
  be(Rope{.x = q_heads, .positions = step.batch.positions, .freqs = freqs});

  const Tensor o = step.ws.f32({n, n_heads, d}, "o");
  be(Attention{.out = o,
               .q = q_heads,
               .k = k_rows,
               .v = v_rows,
               .batch = &step.batch,
               .n_kv_heads = n_kv,
               .window = layer.sliding ? config_.window : 0,
               .scale = 1.0F});  // not 1/sqrt(d): q and k are normed
  const Tensor y = step.ws.f32({n, config_.d_model}, "y");
  be(Linear{.out = y, .x = o.reshape({n, n_heads * d}), .weight = w.o});
  be(RmsNorm{.out = y, .x = y, .weight = w.post_attn_norm, .eps = config_.rms_eps});
  be(Add{.out = h, .a = h, .b = y});
}

void Gemma4::project_qkv(Step& step, int64_t index, const Tensor& x, const Tensor& q, const Tensor& k,
                         const Tensor& v) const {
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  if (fusion_.fused(index, "qkv")) {
    Projections op{.x = x, .parts = {{{q, w.q}, {k, w.k}}}, .n_parts = 2};
    if (w.v) op.parts[static_cast<size_t>(op.n_parts++)] = {v, w.v};
    step.be(op);
    return;
  }
  step.be(Linear{.out = q, .x = x, .weight = w.q});
  step.be(Linear{.out = k, .x = x, .weight = w.k});
  if (w.v) step.be(Linear{.out = v, .x = x, .weight = w.v});
}

// Dense: h += norm(ffn(norm(h))). Hybrid: h += norm(norm_1(ffn(norm(h))) + norm_2(experts(h))); both branches
// and the router read the same residual. Its norms come first and together, and the two gated products follow
// each other, so that a backend can run them as one.
void Gemma4::feed_forward(Step& step, int64_t index, const Tensor& h) const {
  const Workspace::Scope scope(step.ws);
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  Backend& be = step.be;
  const bool hybrid = config_.n_experts > 0;
  const Tensor y = step.ws.f32({step.n, config_.d_model}, "ffn");
  const Tensor x = step.ws.f32({step.n, config_.d_model}, "x");
  const Tensor gate = step.ws.f32({step.n, config_.layer(index).d_ff}, "gate");
  Routed routed;
  if (hybrid) routed = routed_buffers(step);
  {
    const Stage stage(be, index, "ffn");
    be(RmsNorm{.out = x, .x = h, .weight = w.ffn_norm, .eps = config_.rms_eps});
  }
  if (hybrid) route(step, index, routed, h);
  {
    const Stage stage(be, index, "ffn");
    dense_gate(step, index, gate, x);
  }
  if (hybrid) experts(step, index, routed);
  {
    const Stage stage(be, index, "ffn");
    be(Linear{.out = y, .x = gate, .weight = w.down});
  }
  if (hybrid) {
    const Stage stage(be, index, "experts");
    be(RmsNorm{.out = y, .x = y, .weight = w.post_ffn_norm_1, .eps = config_.rms_eps});
    be(RmsNorm{.out = routed.out, .x = routed.out, .weight = w.post_ffn_norm_2, .eps = config_.rms_eps});
    be(Add{.out = y, .a = y, .b = routed.out});
  }
  const Stage stage(be, index, "ffn");
  be(RmsNorm{.out = y, .x = y, .weight = w.post_ffn_norm, .eps = config_.rms_eps});
  be(Add{.out = h, .a = h, .b = y});
}

// gate = gelu(x @ Wg) * (x @ Wu)
void Gemma4::dense_gate(Step& step, int64_t index, const Tensor& gate, const Tensor& x) const {
  const Workspace::Scope scope(step.ws);
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  const Tensor up = step.ws.f32({step.n, config_.layer(index).d_ff}, "up");
  if (fusion_.fused(index, "gate_up")) {
    step.be(Projections{.x = x, .parts = {{{gate, w.gate}, {up, w.up}}}, .n_parts = 2});
  } else {
    step.be(Linear{.out = gate, .x = x, .weight = w.gate});
    step.be(Linear{.out = up, .x = x, .weight = w.up});
  }
  step.be(Glu{.out = gate, .gate = gate, .up = up, .row_weight = {}, .act = Glu::Act::kGeluTanh});
}

Gemma4::Routed Gemma4::routed_buffers(Step& step) const {
  const int64_t n = step.n, k = config_.n_experts_used;
  return {.x = step.ws.f32({n, config_.d_model}, "expert_x"),
          .router_x = step.ws.f32({n, config_.d_model}, "router_x"),
          .out = step.ws.f32({n, config_.d_model}, "routed"),
          .ids = step.ws.i32({n, k}, "expert_ids"),
          .weights = step.ws.f32({n, k}, "expert_weights")};
}

void Gemma4::route(Step& step, int64_t index, const Routed& routed, const Tensor& residual) const {
  const Workspace::Scope scope(step.ws);
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  Backend& be = step.be;
  const Stage stage(be, index, "router");
  be(RmsNorm{.out = routed.x, .x = residual, .weight = w.pre_ffn_norm_2, .eps = config_.rms_eps});
  be(RmsNorm{.out = routed.router_x,
             .x = residual,
             .weight = w.router_scale,
             .eps = config_.rms_eps,
             .factor = inverse_sqrt(config_.d_model)});
  const Tensor logits = step.ws.f32({step.n, config_.n_experts}, "router_logits");
  be(Linear{.out = logits, .x = routed.router_x, .weight = w.router});
  be(RouteSoftmax{
      .ids = routed.ids, .weights = routed.weights, .logits = logits, .expert_scale = w.expert_scale});
}

void Gemma4::experts(Step& step, int64_t index, const Routed& routed) const {
  const Workspace::Scope scope(step.ws);
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  Backend& be = step.be;
  const int64_t n = step.n, k = config_.n_experts_used;
  const Stage stage(be, index, "experts");
  if (fusion_.fused(index, "expert_gate_up")) {
    be(ExpertFfn{.out = routed.out,
                 .x = routed.x,
                 .ids = routed.ids,
                 .weights = routed.weights,
                 .shared = {},
                 .gate = w.expert_gate,
                 .up = w.expert_up,
                 .down = w.expert_down,
                 .act = Glu::Act::kGeluTanh});
    return;
  }
  const Tensor gate = step.ws.f32({n, k, config_.d_expert}, "expert_gate");
  const Tensor up = step.ws.f32({n, k, config_.d_expert}, "expert_up");
  const Tensor down = step.ws.f32({n, k, config_.d_model}, "expert_down");
  be(ExpertLinear{.out = gate, .x = routed.x, .ids = routed.ids, .experts = w.expert_gate});
  be(ExpertLinear{.out = up, .x = routed.x, .ids = routed.ids, .experts = w.expert_up});
  be(Glu{.out = gate, .gate = gate, .up = up, .row_weight = {}, .act = Glu::Act::kGeluTanh});
  be(ExpertLinear{.out = down, .x = gate, .ids = routed.ids, .experts = w.expert_down});
  be(CombineExperts{.out = routed.out, .x = down, .weights = routed.weights, .shared = {}});
}

// h += norm((gelu(h @ Wg) * p[layer]) @ Wp)
void Gemma4::per_layer_input(Step& step, int64_t index, const Tensor& h) const {
  const Stage stage(step.be, index, "ple");
  const Workspace::Scope scope(step.ws);
  const LayerWeights& w = layers_[static_cast<size_t>(index)];
  const Tensor t = step.ws.f32({step.n, config_.d_ple}, "ple_gate");
  const Tensor y = step.ws.f32({step.n, config_.d_model}, "ple_out");
  const Tensor p = step.ple.slice(1, index * config_.d_ple, (index + 1) * config_.d_ple);
  step.be(Linear{.out = t, .x = h, .weight = w.ple_gate});
  step.be(Glu{.out = t, .gate = t, .up = p, .row_weight = {}, .act = Glu::Act::kGeluTanh});
  step.be(Linear{.out = y, .x = t, .weight = w.ple_projection});
  step.be(RmsNorm{.out = y, .x = y, .weight = w.post_ple_norm, .eps = config_.rms_eps});
  step.be(Add{.out = h, .a = h, .b = y});
}

// Final norm and head, for the requested rows only; all rows are normed when the state is tapped.
void Gemma4::head(Step& step, const Tensor& h, const ForwardRequest& request) const {
  const Stage stage(step.be, -1, "head");
  Backend& be = step.be;
  Tensor u = h;
  const auto norm = [&] { be(RmsNorm{.out = u, .x = u, .weight = final_norm_, .eps = config_.rms_eps}); };
  if (request.tap) {
    norm();
    request.tap(config_.n_layers(), u);
  }
  if (!request.logits && !request.greedy) return;
  if (request.rows) {
    if (request.rows.dim(0) == 0) return;
    u = step.ws.f32({request.rows.dim(0), config_.d_model}, "head_rows");
    be(GatherRows{.out = u, .x = h, .rows = request.rows});
  }
  if (!request.tap) norm();
  const Tensor logits =
      request.logits ? request.logits : step.ws.f32({u.dim(0), config_.vocab_size}, "logits");
  be(Linear{.out = logits, .x = u, .weight = head_});
  // The cap is monotonic, so the arg-max needs none; capped values may collide after rounding.
  if (request.greedy) be(ArgMax{.out = request.greedy, .x = logits});
  if (request.logits && config_.soft_cap > 0.0F) be(SoftCap{.x = logits, .cap = config_.soft_cap});
}

}  // namespace synod::gemma4
