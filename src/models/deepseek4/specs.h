// Weights of DeepSeek-V4: roles, shapes, and the names that four kinds of files use for them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/deepseek4/config.h"
#include "models/weights.h"

namespace synod::deepseek4 {

std::vector<WeightSpec> weight_specs(const Config& config);

// Names of the dialects, and the tensors of draft blocks, which are skipped: GGUF blocks from `n_layers` on
// too.
DialectInfo dialect_info(int64_t n_layers);

// Role of a layer's tensor: "blk.3.attn_q_a.weight".
std::string layer_role(int64_t layer, std::string_view name);

}  // namespace synod::deepseek4
