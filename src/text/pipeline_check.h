// Decides whether the pipeline of a tokenizer.json means what one of the two families means. What it does is
// fixed in code, so a file that asks for anything else must be refused, not read approximately.
#pragma once

#include <string>

#include "text/json_value.h"
#include "text/tokenizer.h"

namespace synod {

// `root` is the whole file. Refuses with kBadFile.
TokenizerData::Scheme check_pipeline(const JsonValue& root);

// The token that the post-processor puts before every text, if any.
std::optional<std::string> leading_special_token(const JsonValue& root);

}  // namespace synod
