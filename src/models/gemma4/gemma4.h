// Gemma 4: the family's entry in the registry.
#pragma once

#include "models/model.h"

namespace synod::gemma4 {
const Architecture& architecture();
}  // namespace synod::gemma4
