// Gemma 4's weights: every role with its shape and the names that the dialects give it.
#pragma once

#include <vector>

#include "models/gemma4/config.h"
#include "models/weights.h"

namespace synod::gemma4 {

std::vector<WeightSpec> weight_specs(const Config& config);

// What may be left over in a file: other modalities, and tensors that no layer of `config` reads.
DialectInfo dialects(const Config& config);

}  // namespace synod::gemma4
