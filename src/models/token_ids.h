// Special token ids as configuration files and GGUF keys give them, range-checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"

namespace synod {

std::optional<int32_t> gguf_token_id(const GgufMetadata& gguf, const std::string& key, size_t n_tokens,
                                     const std::string& file);

// Ids of a member that is a number or a list, from generation_config.json, config.json and its text_config,
// in this order.
std::vector<int32_t> config_token_ids(const Checkpoint& checkpoint, const std::string& key, size_t n_tokens);

}  // namespace synod
