// DeepSeek-V4's calls: a DSML block of invokes with one tag per parameter, strings raw, the rest JSON.
#pragma once

#include "models/tool_grammar.h"

namespace synod::deepseek4 {

Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls);
Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls);

}  // namespace synod::deepseek4
