// DeepSeek-V4: the family's entry in the registry.
#pragma once

#include "models/model.h"

namespace synod::deepseek4 {
const Architecture& architecture();
}  // namespace synod::deepseek4
