// GGUF metadata of the architecture: what config_gguf.cpp and llama.cpp read.
#include "models/deepseek4/metadata.h"

#include "models/deepseek4/gguf_keys.h"

namespace synod::deepseek4 {
namespace {

class Writer {
 public:
  explicit Writer(GgufMetadata& out) : out_(out) {}
  void u32(std::string_view name, int64_t value) {
    out_.set_u32(full_key(name), static_cast<uint32_t>(value));
  }
  void f32(std::string_view name, float value) { out_.set_f32(full_key(name), value); }
  void flag(std::string_view name, bool value) { out_.set_bool(full_key(name), value); }
  void text(std::string_view name, std::string value) { out_.set_string(full_key(name), std::move(value)); }
  void u32s(std::string_view name, const std::vector<int64_t>& values) {
    out_.set_u32s(full_key(name), std::vector<uint32_t>(values.begin(), values.end()));
  }
  void f32s(std::string_view name, const std::vector<float>& values) {
    out_.set_f32s(full_key(name), values);
  }

 private:
  GgufMetadata& out_;
};

void write_rope(const Config& c, Writer& out) {
  out.u32(kRopeDim, c.rope_dim);
  out.f32(kRopeBase, c.rope_theta);
  out.f32(kCompressRopeBase, c.compress_rope_theta);
  out.text(kScalingType, c.yarn.enabled ? "yarn" : "none");
  if (!c.yarn.enabled) return;
  out.f32(kScalingFactor, c.yarn.factor);
  out.u32(kScalingContext, c.yarn.original_context);
  out.f32(kYarnBetaFast, c.yarn.beta_fast);
  out.f32(kYarnBetaSlow, c.yarn.beta_slow);
}

void write_attention(const Config& c, Writer& out) {
  out.u32(kHeadCount, c.n_heads);
  out.u32(kHeadCountKv, 1);
  out.u32(kKeyLength, c.head_dim);
  out.u32(kValueLength, c.head_dim);
  out.f32(kRmsEps, c.rms_norm_eps);
  out.u32(kQueryRank, c.q_rank);
  out.u32(kOutputGroups, c.n_output_groups);
  out.u32(kOutputRank, c.output_rank);
  out.u32(kWindow, c.window);
  out.u32s(kCompressRatios, c.ratios);
  out.u32(kIndexHeads, c.n_index_heads);
  out.u32(kIndexDim, c.index_dim);
  out.u32(kIndexTopK, c.index_top_k);
}

void write_experts(const Config& c, Writer& out) {
  out.u32(kExpertCount, c.n_experts);
  out.u32(kExpertUsed, c.n_experts_used);
  out.u32(kExpertShared, c.n_shared_experts);
  out.u32(kExpertWidth, c.d_expert);
  out.u32(kExpertGating, kGatingSqrtSoftplus);
  out.flag(kExpertWeightsNorm, true);
  out.f32(kExpertWeightsScale, c.route_scale);
  out.u32(kHashLayers, c.n_hash_layers);
  out.f32s(kExpertClamp, c.expert_clamp);
  out.f32s(kSharedClamp, c.shared_clamp);
}

}  // namespace

void write_config(const Config& c, GgufMetadata& metadata) {
  metadata.set_string("general.architecture", std::string(kArchitecture));
  Writer out(metadata);
  out.u32(kVocabSize, c.vocab_size);
  out.u32(kContextLength, c.context_length);
  out.u32(kEmbeddingLength, c.d_model);
  out.u32(kEmbeddingLengthOut, c.n_streams * c.d_model);
  out.u32(kBlockCount, c.n_layers);
  out.u32(kNextnLayers, 0);  // draft blocks are not carried over
  out.u32(kStreams, c.n_streams);
  out.u32(kSinkhornIterations, c.sinkhorn_iterations);
  out.f32(kStreamsEps, c.hc_eps);
  write_attention(c, out);
  write_rope(c, out);
  write_experts(c, out);
}

}  // namespace synod::deepseek4
