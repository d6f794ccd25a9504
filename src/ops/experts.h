// Routing and routed experts. Routers write the chosen experts of a token in ascending expert id, so that
// every later sum over slots runs in ascending id: the same result whatever the batch (design: order of
// summation).
#pragma once

#include <span>
#include <string_view>

#include "base/tensor.h"
#include "ops/elementwise.h"
#include "quant/matrix.h"

namespace synod {

// Routing safety, for all routers: a token whose scores or weights are not finite, or whose table entry is
// out of range, gets ids 0 and weights 0 in all slots and raises a status bit; the step is then not
// committed.

// Weights: softmax over the k chosen logits, times expert_scale. Chosen: k largest logits, ties to the lower
// id.
struct RouteSoftmax {
  static constexpr std::string_view kName = "route_softmax";
  Tensor ids;           // i32 [n_tokens, k], ascending
  Tensor weights;       // f32 [n_tokens, k]
  Tensor logits;        // f32 [n_tokens, n_experts]
  Tensor expert_scale;  // f32 [n_experts], or absent for 1; applied after normalisation
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("ids", ids), v.out("weights", weights), v.in("logits", logits);
    if (expert_scale) v.in("expert_scale", expert_scale);
  }
};

// g_e = sqrt(softplus(logit_e)), softplus(v) = max(v, 0) + log1p(exp(-|v|)); chosen: k largest g_e + bias_e,
// ties to the lower id; weights: g / (sum of chosen g + 1e-20) * scale (without bias).
struct RouteScores {
  static constexpr std::string_view kName = "route_scores";
  Tensor ids;      // i32 [n_tokens, k], ascending
  Tensor weights;  // f32 [n_tokens, k]
  Tensor logits;   // f32 [n_tokens, n_experts]
  Tensor bias;     // f32 [n_experts]
  float scale = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("ids", ids), v.out("weights", weights), v.in("logits", logits), v.in("bias", bias);
    v.value("scale", scale);
  }
};

// Chosen: table[token_ids[t], :] (an expert named twice counts twice); weights as RouteScores.
struct RouteHash {
  static constexpr std::string_view kName = "route_hash";
  Tensor ids;        // i32 [n_tokens, k], ascending
  Tensor weights;    // f32 [n_tokens, k]
  Tensor logits;     // f32 [n_tokens, n_experts]
  Tensor token_ids;  // i32 [n_tokens]
  Tensor table;      // i32 [vocabulary, k]
  float scale = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("ids", ids), v.out("weights", weights), v.in("logits", logits), v.in("token_ids", token_ids);
    v.value("scale", scale);
  }
};

// out[t, s, :] = experts[ids[t, s]] * x[t, :] (or x[t, s, :] when x has a slot dimension)
struct ExpertLinear {
  static constexpr std::string_view kName = "expert_linear";
  Tensor out;                       // f32 [n_tokens, k, n_out]
  Tensor x;                         // f32 [n_tokens, n_in] or [n_tokens, k, n_in]
  Tensor ids;                       // i32 [n_tokens, k]
  std::span<const Matrix> experts;  // [n_experts] of [n_out, n_in]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.in("ids", ids), v.experts("experts", experts, ids.dim(0), ids.dim(1));
  }
};

// out[t, :] = sum_s weights[t, s] * x[t, s, :] in slot order, then + shared[t, :]
struct CombineExperts {
  static constexpr std::string_view kName = "combine_experts";
  Tensor out;      // f32 [n_tokens, d]
  Tensor x;        // f32 [n_tokens, k, d]
  Tensor weights;  // f32 [n_tokens, k], or absent for 1
  Tensor shared;   // f32 [n_tokens, d], or absent
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x);
    if (weights) v.in("weights", weights);
    if (shared) v.in("shared", shared);
  }
};

// The routed feed-forward of one layer: out = sum_s weights[s] * down_s(act(gate_s x) * up_s x) + shared.
// Lowers to ExpertLinear x 2, Glu, ExpertLinear, CombineExperts.
struct ExpertFfn {
  static constexpr std::string_view kName = "expert_ffn";
  Tensor out;                        // f32 [n_tokens, d_model]
  Tensor x;                          // f32 [n_tokens, d_model]
  Tensor ids;                        // i32 [n_tokens, k], ascending
  Tensor weights;                    // f32 [n_tokens, k]
  Tensor shared;                     // f32 [n_tokens, d_model], or absent
  std::span<const Matrix> gate, up;  // [n_experts] of [d_expert, d_model]
  std::span<const Matrix> down;      // [n_experts] of [d_model, d_expert]
  Glu::Act act = Glu::Act::kSilu;
  float limit = 0.0F;
  // Profile Q of DeepSeek-V4: the weight multiplies the activation before `down`, and the product is rounded
  // to the FP8 grid per 128 values. Otherwise the weight multiplies the output of `down`.
  bool round_hidden = false;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.in("ids", ids), v.in("weights", weights);
    if (shared) v.in("shared", shared);
    v.experts("gate", gate, ids.dim(0), ids.dim(1)), v.experts("up", up, ids.dim(0), ids.dim(1));
    v.experts("down", down, ids.dim(0), ids.dim(1)), v.value("limit", limit);
  }
};

}  // namespace synod
