// Gemma 4: the family's entry in the registry.
#pragma once

#include <vector>

#include "models/model.h"

namespace synod::gemma4 {

const Architecture& architecture();

// The values of rope_freqs.weight [head size of full layers / 2], whatever the container.
std::vector<float> rope_freq_divisors(const Checkpoint& checkpoint);

}  // namespace synod::gemma4
