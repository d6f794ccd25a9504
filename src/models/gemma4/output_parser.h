// Gemma 4's output: <|channel>thought ... <channel|> is reasoning, <|tool_call>call:NAME{...}<tool_call|> a
// call, the rest is content.
#pragma once

#include <memory>
#include <span>

#include "models/output_parser.h"
#include "text/tokenizer.h"

namespace synod::gemma4 {

std::unique_ptr<OutputParser> make_output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                                 const OutputParserOptions& options);

}  // namespace synod::gemma4
