// The feed-forward site: experts chosen by token id (first layers) or by score, and a shared expert for every
// token. Both kinds use the clamped SwiGLU.
#include "models/deepseek4/deepseek4_model.h"
#include "ops/lowering.h"

namespace synod::deepseek4 {

void Deepseek4::moe(int64_t layer, const Tensor& out, const Tensor& x, Step& step) const {
  const Config& c = config_;
  const MoeWeights& w = layer_weights(layer).moe;
  Workspace& ws = step.ws();
  const Workspace::Scope scope(ws);
  const int64_t n = step.n_tokens;
  const Tensor ids = ws.i32({n, c.n_experts_used}, "expert ids");
  const Tensor weights = ws.f32({n, c.n_experts_used}, "expert weights");
  const Tensor shared = ws.f32({n, c.d_model}, "shared expert output");
  route(layer, ids, weights, x, step);
  const Tensor input = rounded(x, step);
  shared_expert(layer, shared, input, step);

  const Stage stage(step.be, layer, "experts");
  const ExpertFfn experts{.out = out,
                          .x = input,
                          .ids = ids,
                          .weights = weights,
                          .shared = shared,
                          .gate = w.gate,
                          .up = w.up,
                          .down = w.down,
                          .act = Glu::Act::kSilu,
                          .limit = c.expert_clamp[static_cast<size_t>(layer)],
                          .round_hidden = rounds()};
  if (fusion_.fused(layer, "expert_gate_up")) {
    step.be(experts);
  } else {
    experts.check();
    lower(experts, step.be);
  }
}

// The router sees the input as it is: rounding it would flip choices.
void Deepseek4::route(int64_t layer, const Tensor& ids, const Tensor& weights, const Tensor& x,
                      Step& step) const {
  const Config& c = config_;
  const MoeWeights& w = layer_weights(layer).moe;
  Backend& be = step.be;
  const Stage stage(be, layer, "router");
  const Workspace::Scope scope(step.ws());
  const Tensor logits = step.ws().f32({step.n_tokens, c.n_experts}, "router logits");
  be(Linear{.out = logits, .x = x, .weight = w.router});
  if (c.is_hash_layer(layer)) {
    be(RouteHash{.ids = ids,
                 .weights = weights,
                 .logits = logits,
                 .token_ids = step.batch.ids,
                 .table = w.table,
                 .scale = c.route_scale});
  } else {
    be(RouteScores{.ids = ids, .weights = weights, .logits = logits, .bias = w.bias, .scale = c.route_scale});
  }
}

void Deepseek4::shared_expert(int64_t layer, const Tensor& out, const Tensor& x, Step& step) const {
  const Config& c = config_;
  const MoeWeights& w = layer_weights(layer).moe;
  const Stage stage(step.be, layer, "shared_expert");
  const Workspace::Scope scope(step.ws());
  const Tensor gate = step.ws().f32({step.n_tokens, c.d_shared()}, "shared gate");
  const Tensor up = step.ws().f32({step.n_tokens, c.d_shared()}, "shared up");
  project(layer, "shared_gate_up", x, {{gate, &w.shared_gate}, {up, &w.shared_up}}, step);
  step.be(Glu{.out = gate,
              .gate = gate,
              .up = up,
              .act = Glu::Act::kSilu,
              .limit = c.shared_clamp[static_cast<size_t>(layer)]});
  step.be(Linear{.out = out, .x = rounded(gate, step), .weight = w.shared_down});
}

}  // namespace synod::deepseek4
