// DeepSeek-V4 as a Model: weights by layer, cache groups, and the forward pass over any backend.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/deepseek4/config.h"
#include "models/deepseek4/prompt_texts.h"
#include "models/model.h"

namespace synod::deepseek4 {

// One hyper-connection site. mix_dim = (2 + n_streams) * n_streams.
struct SiteWeights {
  Matrix fn;     // [mix_dim, n_streams * d_model]
  Tensor base;   // f32 [mix_dim]
  Tensor scale;  // f32 [3]
};

// Pools tokens into compressed rows of `dim` values. width = lanes * dim.
struct CompressorWeights {
  Matrix values;     // [width, d_model]
  Matrix scores;     // [width, d_model]
  Matrix positions;  // f32 [ratio, width], added to the scores of a token by its place in the block
  Tensor norm;       // f32 [dim]
};

struct IndexerWeights {
  Matrix q;     // [n_index_heads * index_dim, q_rank]
  Matrix beta;  // [n_index_heads, d_model]
  CompressorWeights compressor;
};

struct AttentionWeights {
  Tensor norm;                   // f32 [d_model]
  Matrix q_a;                    // [q_rank, d_model]
  Tensor q_a_norm;               // f32 [q_rank]
  Matrix q_b;                    // [n_heads * head_dim, q_rank]
  Matrix kv;                     // [head_dim, d_model]
  Tensor kv_norm;                // f32 [head_dim]
  Tensor sinks;                  // f32 [n_heads]
  Matrix output_a;               // [n_output_groups * output_rank, n_heads * head_dim / n_output_groups]
  Matrix output_b;               // [d_model, n_output_groups * output_rank]
  CompressorWeights compressor;  // layers with a ratio
  IndexerWeights indexer;        // layers of ratio 4
};

struct MoeWeights {
  Tensor norm;                             // f32 [d_model]
  Matrix router;                           // [n_experts, d_model]
  Tensor bias;                             // f32 [n_experts], score-routed layers
  Tensor table;                            // i32 [vocab_size, n_experts_used], hash-routed layers
  std::span<const Matrix> gate, up, down;  // [n_experts]
  Matrix shared_gate, shared_up, shared_down;
};

struct LayerWeights {
  SiteWeights attention_site, moe_site;
  AttentionWeights attention;
  MoeWeights moe;
};

struct HeadWeights {
  Matrix embedding;  // [vocab_size, d_model]
  Matrix fn;         // [n_streams, n_streams * d_model]
  Tensor base;       // f32 [n_streams]
  Tensor scale;      // f32 [1]
  Tensor norm;       // f32 [d_model]
  Matrix output;     // [vocab_size, d_model]
};

// Indices in CacheSpec::groups, -1 where the schedule has no such rows.
struct CacheGroups {
  int window = -1;        // key/value rows of the last tokens, all layers
  int sparse = -1;        // compressed rows of ratio 4
  int index_keys = -1;    // the indexer's rows of ratio 4
  int heavy = -1;         // compressed rows of ratio 128
  int sparse_state = -1;  // compressor inputs per token
  int index_state = -1;
  int heavy_state = -1;
};

class Deepseek4 final : public Model {
 public:
  // `weights` holds the roles of weight_specs(config).
  Deepseek4(Config config, Weights weights, const ModelOptions& options, std::string name,
            PromptTexts prompt_texts);

  const ModelInfo& info() const override { return info_; }
  const CacheSpec& cache_spec() const override { return cache_; }
  const Weights& weights() const override { return weights_; }
  const FusionPlan& fusion() const override { return fusion_; }
  std::unique_ptr<Dialogue> dialogue() const override;
  void forward(const BatchView& batch, const KvView& kv, Backend& be,
               const ForwardRequest& request) const override;

  const Config& config() const { return config_; }

 private:
  // What one forward call carries from op to op.
  struct Step {
    const BatchView& batch;
    const KvView& kv;
    Backend& be;
    int64_t n_tokens;
    Tensor sparse_slots;  // i32 [n_tokens] place of each token in its block of 4; absent without such layers
    Tensor heavy_slots;   // the same for blocks of 128
    std::vector<int32_t> sparse_values, heavy_values;  // what the slots view

    Workspace& ws() const { return be.workspace(); }
  };
  // What a layer's input becomes before rows are written; the last two are absent where none are selected.
  struct Projected {
    Tensor latent;         // f32 [n_tokens, q_rank]
    Tensor kv;             // f32 [n_tokens, head_dim]
    Tensor state;          // f32 [n_tokens, 2 * width] of the compressor; absent without one
    Tensor index_state;    // the same of the indexer's; absent without one
    Tensor index_queries;  // f32 [n_tokens, n_index_heads, index_dim], not yet computed
    Tensor beta;           // f32 [n_tokens, n_index_heads]
  };

  Step begin(const BatchView& batch, const KvView& kv, Backend& be) const;
  template <typename Sublayer>
  void hyper_connect(const SiteWeights& w, const Tensor& norm, int64_t layer, Tensor& streams, Tensor& spare,
                     Step& step, Sublayer&& sublayer) const;
  void head(const Tensor& streams, Step& step, const ForwardRequest& request) const;
  void final_norm(const Tensor& out, const Tensor& streams, Step& step) const;

  // out, x: f32 [n_tokens, d_model]
  void attention(int64_t layer, const Tensor& out, const Tensor& x, Step& step) const;
  bool selects_rows(const Step& step) const;
  Projected project_input(int64_t layer, const Tensor& x, Step& step) const;
  void queries_and_window(int64_t layer, const Tensor& queries, const Projected& p, Step& step) const;
  void compress(int64_t layer, const Projected& p, Step& step) const;
  void select_rows(int64_t layer, const Tensor& selected, const Projected& p, Step& step) const;
  void attend(int64_t layer, const Tensor& out, const Tensor& queries, const Tensor& selected,
              Step& step) const;
  void output_projection(int64_t layer, const Tensor& out, const Tensor& heads, Step& step) const;

  void moe(int64_t layer, const Tensor& out, const Tensor& x, Step& step) const;
  void route(int64_t layer, const Tensor& ids, const Tensor& weights, const Tensor& x, Step& step) const;
  void shared_expert(int64_t layer, const Tensor& out, const Tensor& x, Step& step) const;

  // Profile Q: x rounded to the FP8 grid per 128 values, in the scratch memory of the step; otherwise x.
  Tensor rounded(const Tensor& x, Step& step) const;
  // Products of one input, as one op where the plan says so.
  void project(int64_t layer, std::string_view kind, const Tensor& x,
               std::initializer_list<std::pair<Tensor, const Matrix*>> parts, Step& step) const;
  const Tensor& freqs(int64_t layer) const;
  int64_t ratio(int64_t layer) const { return config_.ratios[static_cast<size_t>(layer)]; }
  const LayerWeights& layer_weights(int64_t layer) const { return layers_[static_cast<size_t>(layer)]; }
  bool rounds() const { return profile_ == Profile::kQ; }

  void bind_layers();
  void plan_cache();
  void plan_fusion(const ModelOptions& options);

  Config config_;
  Weights weights_;
  Profile profile_;
  PromptTexts prompt_texts_;
  ModelInfo info_;
  CacheSpec cache_;
  CacheGroups groups_;
  FusionPlan fusion_;
  std::vector<LayerWeights> layers_;
  HeadWeights head_;
  std::vector<float> window_freqs_, compressed_freqs_;  // [rope_dim / 2]
  Tensor window_freqs_tensor_, compressed_freqs_tensor_;
};

}  // namespace synod::deepseek4
