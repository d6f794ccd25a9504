// The prompt format of DeepSeek-V4: turns, thinking marks, and which reasoning of earlier turns is kept.
#pragma once

#include <memory>

#include "models/dialogue.h"

namespace synod::deepseek4 {

std::unique_ptr<Dialogue> make_dialogue();

}  // namespace synod::deepseek4
