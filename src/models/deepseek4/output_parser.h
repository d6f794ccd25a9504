// DeepSeek-V4's output: reasoning up to </think>, content, then a block of DSML calls.
#pragma once

#include <memory>
#include <span>

#include "models/output_parser.h"
#include "text/tokenizer.h"

namespace synod::deepseek4 {

std::unique_ptr<OutputParser> make_output_parser(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                                 const OutputParserOptions& options);

}  // namespace synod::deepseek4
