// GGUF keys of the family, spelled once for reading and writing. All stand behind "gemma4.".
#pragma once

#include <string>
#include <string_view>

namespace synod::gemma4 {

std::string full_key(std::string_view key);

namespace key {
inline constexpr std::string_view kLayers = "block_count";
inline constexpr std::string_view kContext = "context_length";
inline constexpr std::string_view kWidth = "embedding_length";
inline constexpr std::string_view kVocabulary = "vocab_size";
inline constexpr std::string_view kFeedForward = "feed_forward_length";  // scalar or one per layer
inline constexpr std::string_view kExperts = "expert_count";
inline constexpr std::string_view kExpertsUsed = "expert_used_count";
inline constexpr std::string_view kExpertWidth = "expert_feed_forward_length";
inline constexpr std::string_view kHeads = "attention.head_count";
inline constexpr std::string_view kKvHeads = "attention.head_count_kv";  // scalar or one per layer
inline constexpr std::string_view kKeyLength = "attention.key_length";   // of full layers
inline constexpr std::string_view kValueLength = "attention.value_length";
inline constexpr std::string_view kKeyLengthSliding = "attention.key_length_swa";
inline constexpr std::string_view kValueLengthSliding = "attention.value_length_swa";
inline constexpr std::string_view kRmsEpsilon = "attention.layer_norm_rms_epsilon";
inline constexpr std::string_view kWindow = "attention.sliding_window";
inline constexpr std::string_view kSlidingPattern = "attention.sliding_window_pattern";  // true = sliding
inline constexpr std::string_view kSharedKvLayers = "attention.shared_kv_layers";
inline constexpr std::string_view kPerLayerInput = "embedding_length_per_layer_input";
inline constexpr std::string_view kRopeDim = "rope.dimension_count";  // of full layers
inline constexpr std::string_view kRopeDimSliding = "rope.dimension_count_swa";
inline constexpr std::string_view kRopeTheta = "rope.freq_base";
inline constexpr std::string_view kRopeThetaSliding = "rope.freq_base_swa";
inline constexpr std::string_view kSoftCap = "final_logit_softcapping";
inline constexpr const char* kRopeFreqs =
    "rope_freqs.weight";  // a tensor: divisors of the full layers' frequencies
}  // namespace key

}  // namespace synod::gemma4
