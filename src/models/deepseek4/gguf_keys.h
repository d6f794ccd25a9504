// GGUF keys of the architecture, without the prefix "deepseek4.".
#pragma once

#include <string>
#include <string_view>

namespace synod::deepseek4 {

inline constexpr std::string_view kArchitecture = "deepseek4";
inline std::string full_key(std::string_view name) {
  return std::string(kArchitecture) + "." + std::string(name);
}

inline constexpr std::string_view kVocabSize = "vocab_size";
inline constexpr std::string_view kEmbeddingLength = "embedding_length";
inline constexpr std::string_view kEmbeddingLengthOut = "embedding_length_out";
inline constexpr std::string_view kBlockCount = "block_count";
inline constexpr std::string_view kContextLength = "context_length";
inline constexpr std::string_view kRmsEps = "attention.layer_norm_rms_epsilon";

inline constexpr std::string_view kHeadCount = "attention.head_count";
inline constexpr std::string_view kHeadCountKv = "attention.head_count_kv";
inline constexpr std::string_view kKeyLength = "attention.key_length";
inline constexpr std::string_view kValueLength = "attention.value_length";
inline constexpr std::string_view kQueryRank = "attention.q_lora_rank";
inline constexpr std::string_view kOutputGroups = "attention.output_group_count";
inline constexpr std::string_view kOutputRank = "attention.output_lora_rank";
inline constexpr std::string_view kWindow = "attention.sliding_window";
inline constexpr std::string_view kCompressRatios = "attention.compress_ratios";
inline constexpr std::string_view kCompressRopeBase = "attention.compress_rope_freq_base";
inline constexpr std::string_view kIndexHeads = "attention.indexer.head_count";
inline constexpr std::string_view kIndexDim = "attention.indexer.key_length";
inline constexpr std::string_view kIndexTopK = "attention.indexer.top_k";

inline constexpr std::string_view kRopeDim = "rope.dimension_count";
inline constexpr std::string_view kRopeBase = "rope.freq_base";
inline constexpr std::string_view kScalingType = "rope.scaling.type";
inline constexpr std::string_view kScalingFactor = "rope.scaling.factor";
inline constexpr std::string_view kScalingContext = "rope.scaling.original_context_length";
inline constexpr std::string_view kYarnBetaFast = "rope.scaling.yarn_beta_fast";
inline constexpr std::string_view kYarnBetaSlow = "rope.scaling.yarn_beta_slow";
inline constexpr std::string_view kYarnExtFactor = "rope.scaling.yarn_ext_factor";
inline constexpr std::string_view kYarnAttnFactor = "rope.scaling.yarn_attn_factor";

inline constexpr std::string_view kExpertCount = "expert_count";
inline constexpr std::string_view kExpertUsed = "expert_used_count";
inline constexpr std::string_view kExpertShared = "expert_shared_count";
inline constexpr std::string_view kExpertWidth = "expert_feed_forward_length";
inline constexpr std::string_view kExpertGating = "expert_gating_func";
inline constexpr std::string_view kExpertGroupCount = "expert_group_count";
inline constexpr std::string_view kExpertWeightsNorm = "expert_weights_norm";
inline constexpr std::string_view kExpertWeightsScale = "expert_weights_scale";
inline constexpr std::string_view kExpertClamp = "swiglu_clamp_exp";
inline constexpr std::string_view kSharedClamp = "swiglu_clamp_shexp";
inline constexpr std::string_view kHashLayers = "hash_layer_count";
inline constexpr std::string_view kNextnLayers = "nextn_predict_layers";

inline constexpr std::string_view kStreams = "hyper_connection.count";
inline constexpr std::string_view kSinkhornIterations = "hyper_connection.sinkhorn_iterations";
inline constexpr std::string_view kStreamsEps = "hyper_connection.epsilon";

inline constexpr int64_t kGatingSqrtSoftplus = 4;

}  // namespace synod::deepseek4
