#include "models/token_ids.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace synod {
namespace {

using nlohmann::json;

int32_t checked_id(const json& value, const char* file, const std::string& key, size_t n_tokens) {
  const bool fits = value.is_number_integer() && value.get<int64_t>() >= 0 &&
                    static_cast<uint64_t>(value.get<int64_t>()) < n_tokens;
  if (!fits) bad_file("{}: key {}: expected ids from 0 to {}, got {}", file, key, n_tokens - 1, value.dump());
  return value.get<int32_t>();
}

void add_ids(const json& object, const char* file, const std::string& key, size_t n_tokens,
             std::vector<int32_t>& ids) {
  if (!object.is_object()) return;
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) return;
  if (!it->is_array()) {
    ids.push_back(checked_id(*it, file, key, n_tokens));
    return;
  }
  for (const json& value : *it) ids.push_back(checked_id(value, file, key, n_tokens));
}

}  // namespace

std::optional<int32_t> gguf_token_id(const GgufMetadata& gguf, const std::string& key, size_t n_tokens,
                                     const std::string& file) {
  const auto id = gguf.find_int(key);
  if (!id) return std::nullopt;
  // Older writers store -1 for "none", read back as 2^32 - 1.
  if (*id == -1 || *id == int64_t{0xffffffff}) return std::nullopt;
  if (*id < 0 || static_cast<uint64_t>(*id) >= n_tokens) {
    bad_file("{}: key {}: expected an id from 0 to {}, got {}", file, key, n_tokens - 1, *id);
  }
  return static_cast<int32_t>(*id);
}

std::vector<int32_t> config_token_ids(const Checkpoint& checkpoint, const std::string& key, size_t n_tokens) {
  std::vector<int32_t> ids;
  add_ids(checkpoint.generation_config(), "generation_config.json", key, n_tokens, ids);
  const json& config = checkpoint.config();
  add_ids(config, "config.json", key, n_tokens, ids);
  if (config.is_object() && config.contains("text_config")) {
    add_ids(config["text_config"], "config.json: text_config", key, n_tokens, ids);
  }
  return ids;
}

}  // namespace synod
