// Gemma 4's calls: <|tool_call>call:NAME{key:value,...}<tool_call|>, strings between <|"|>, keys bare.
#pragma once

#include "models/tool_grammar.h"

namespace synod::gemma4 {

Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls);
Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls);

}  // namespace synod::gemma4
