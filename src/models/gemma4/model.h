// The Gemma 4 model: resolved weights, cache geometry, one forward call.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/gemma4/config.h"
#include "models/gemma4/dialogue.h"
#include "models/model.h"

namespace synod::gemma4 {

struct LayerWeights {
  Tensor attn_norm, post_attn_norm;  // f32 [d_model]
  Matrix q, k, v, o;                 // k and v empty where rows are shared; v empty where it is the raw k
  Tensor q_norm, k_norm;             // f32 [head_dim]
  Tensor ffn_norm, post_ffn_norm;    // f32 [d_model]
  Matrix gate, up, down;             // dense feed-forward
  Tensor layer_scale;                // f32 [1], or absent

  // Routed feed-forward beside the dense one; empty in dense models.
  Tensor post_ffn_norm_1, pre_ffn_norm_2, post_ffn_norm_2;  // f32 [d_model]
  Matrix router;                                            // [n_experts, d_model]
  Tensor router_scale;                                      // f32 [d_model]
  Tensor expert_scale;                                      // f32 [n_experts]
  std::span<const Matrix> expert_gate, expert_up, expert_down;

  // Per-layer embeddings; empty without.
  Matrix ple_gate;        // [d_ple, d_model]
  Matrix ple_projection;  // [d_model, d_ple]
  Tensor post_ple_norm;   // f32 [d_model]

  int k_group = 0, v_group = 0;  // row groups of the cache that hold this layer's (or its donor's) rows
};

class Gemma4 final : public Model {
 public:
  Gemma4(Config config, Weights weights, const ModelOptions& options, std::string name,
         DialogueFormat format);

  const ModelInfo& info() const override { return info_; }
  const CacheSpec& cache_spec() const override { return cache_spec_; }
  const Weights& weights() const override { return weights_; }
  const FusionPlan& fusion() const override { return fusion_; }
  std::unique_ptr<Dialogue> dialogue() const override { return make_dialogue(format_); }
  const Config& config() const { return config_; }

  void forward(const BatchView& batch, const KvView& kv, Backend& be,
               const ForwardRequest& request) const override;
  std::optional<uint64_t> step_kind(const BatchView&) const override { return 0; }

 private:
  struct Step;    // what one call's functions share (forward.cpp)
  struct Routed;  // buffers of a layer's routed branch

  void resolve_global();
  void resolve_layer(int64_t layer);
  void plan_cache();
  void plan_fusion(const ModelOptions& options);

  Tensor embed(Step& step) const;
  Tensor per_layer_inputs(Step& step, const Tensor& h) const;
  void layer(Step& step, int64_t index, const Tensor& h) const;
  void attention(Step& step, int64_t index, const Tensor& h) const;
  void project_qkv(Step& step, int64_t index, const Tensor& x, const Tensor& q, const Tensor& k,
                   const Tensor& v) const;
  void feed_forward(Step& step, int64_t index, const Tensor& h) const;
  void dense_gate(Step& step, int64_t index, const Tensor& gate, const Tensor& x) const;
  Routed routed_buffers(Step& step) const;
  void route(Step& step, int64_t index, const Routed& routed, const Tensor& residual) const;
  void experts(Step& step, int64_t index, const Routed& routed) const;
  void per_layer_input(Step& step, int64_t index, const Tensor& h) const;
  void head(Step& step, const Tensor& h, const ForwardRequest& request) const;

  Config config_;
  Weights weights_;
  DialogueFormat format_;
  ModelInfo info_;
  CacheSpec cache_spec_;
  FusionPlan fusion_;

  Matrix embedding_;             // [vocab_size, d_model]
  Matrix head_;                  // the same matrix when tied
  Tensor final_norm_;            // f32 [d_model]
  Matrix ple_table_;             // [ple_vocab_size, n_layers * d_ple]
  Matrix ple_model_projection_;  // [n_layers * d_ple, d_model]
  Tensor ple_norm_;              // f32 [d_ple]
  std::vector<LayerWeights> layers_;
  std::vector<float> sliding_frequencies_;  // [sliding_head_dim / 2]
  std::vector<float> full_frequencies_;     // [full_head_dim / 2]
};

}  // namespace synod::gemma4
