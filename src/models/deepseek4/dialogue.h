// The prompt format of DeepSeek-V4: turns, thinking marks, which reasoning of earlier turns is kept, and
// tools.
#pragma once

#include <memory>

#include "models/deepseek4/prompt_texts.h"
#include "models/dialogue.h"

namespace synod::deepseek4 {

std::unique_ptr<Dialogue> make_dialogue(PromptTexts texts);

}  // namespace synod::deepseek4
