// Gemma 4's syntax for tools: declarations, calls and responses. Strings stand between delimiter tokens
// without escapes; keys are bare; members are sorted without regard to case.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "models/dialogue.h"

namespace synod::gemma4 {

// "declaration:NAME{...}". Throws kUsage when the parameters are not a JSON object.
void write_declaration(const Tool& tool, PromptBuilder& prompt);
// "call:NAME{...}". Arguments that are no JSON object are inserted as they are.
void write_call(const ToolCall& call, PromptBuilder& prompt);
// "response:NAME{...}": the members of a JSON object, or {value:...} for text.
void write_response(std::string_view name, const ChatMessage& message, PromptBuilder& prompt);

}  // namespace synod::gemma4
