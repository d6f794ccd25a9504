// Conversion: what a GGUF file of this family says beside its weights.
#pragma once

#include "models/gemma4/config.h"
#include "models/model.h"

namespace synod::gemma4 {

void write_config(const Config& config, GgufMetadata& out);
void write_metadata(const Checkpoint& checkpoint, GgufMetadata& out);

// The values of rope_freqs.weight [full_head_dim / 2]: 1 for rotating pairs (or the scaling factor), 1e30
// others.
std::vector<float> rope_freq_divisors(const Config& config);
// rope_freqs.weight where the checkpoint does not store it.
std::vector<ComputedTensor> computed_tensors(const Checkpoint& checkpoint);

}  // namespace synod::gemma4
