// Tokenizers of checkpoints: from GGUF metadata or tokenizer.json with the special ids of its neighbours.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "models/model.h"
#include "models/token_ids.h"

namespace synod {
namespace {

using nlohmann::json;
using Scheme = TokenizerData::Scheme;

Scheme gguf_scheme(const GgufMetadata& gguf, const std::string& file) {
  const auto model = gguf.find_string("tokenizer.ggml.model");
  if (!model || *model == "none" || *model == "no_vocab") {
    fail(Error::Kind::kNotFound, "{}: no tokenizer: key tokenizer.ggml.model is {}", file,
         model.value_or("missing"));
  }
  if (*model == "gemma4") return Scheme::kCharacterBpe;
  if (*model != "gpt2") {
    bad_file("{}: key tokenizer.ggml.model: expected gemma4 or gpt2, got '{}'", file, *model);
  }
  const std::string pre = gguf.find_string("tokenizer.ggml.pre").value_or("");
  if (pre != "deepseek-v3" && pre != "joyai-llm") {
    bad_file("{}: key tokenizer.ggml.pre: expected deepseek-v3 or joyai-llm, got '{}'", file, pre);
  }
  return Scheme::kByteLevelBpe;
}

// "left right": the first blank that is not the piece itself.
std::pair<std::string, std::string> split_merge(const std::string& text, size_t rank,
                                                const std::string& file) {
  const size_t blank = text.find(' ', 1);
  if (text.empty() || blank == std::string::npos || blank + 1 == text.size()) {
    bad_file("{}: key tokenizer.ggml.merges: entry {}: expected two pieces with a blank between, got '{}'",
             file, rank, text.substr(0, 64));
  }
  return {text.substr(0, blank), text.substr(blank + 1)};
}

std::vector<TokenKind> gguf_kinds(const GgufMetadata& gguf, size_t n_tokens, const std::string& file) {
  const auto types = gguf.find_ints("tokenizer.ggml.token_type");
  if (!types) bad_file("{}: key tokenizer.ggml.token_type is missing", file);
  if (types->size() != n_tokens) {
    bad_file("{}: key tokenizer.ggml.token_type: expected {} entries as in tokens, got {}", file, n_tokens,
             types->size());
  }
  std::vector<TokenKind> kinds;
  kinds.reserve(n_tokens);
  for (const int64_t type : *types) {
    // 0 is llama.cpp's "undefined", which it treats as normal.
    if (type < 0 || type > 6) {
      bad_file("{}: key tokenizer.ggml.token_type: entry {}: expected 0 to 6, got {}", file, kinds.size(),
               type);
    }
    kinds.push_back(type == 0 ? TokenKind::kNormal : static_cast<TokenKind>(type));
  }
  return kinds;
}

TokenizerData data_from_gguf(const GgufMetadata& gguf, const std::string& file) {
  TokenizerData data;
  data.scheme = gguf_scheme(gguf, file);
  auto tokens = gguf.find_strings("tokenizer.ggml.tokens");
  auto merges = gguf.find_strings("tokenizer.ggml.merges");
  if (!tokens) bad_file("{}: key tokenizer.ggml.tokens is missing", file);
  if (!merges) bad_file("{}: key tokenizer.ggml.merges is missing", file);
  data.pieces = std::move(*tokens);
  data.kinds = gguf_kinds(gguf, data.pieces.size(), file);
  data.merges.reserve(merges->size());
  for (size_t rank = 0; rank < merges->size(); ++rank) {
    data.merges.push_back(split_merge((*merges)[rank], rank, file));
  }
  const auto id = [&](const char* name) {
    return gguf_token_id(gguf, fmt::format("tokenizer.ggml.{}_token_id", name), data.pieces.size(), file);
  };
  data.bos = id("bos");
  data.eos = id("eos");
  data.unk = id("unknown");
  data.pad = id("padding");
  data.add_bos = gguf.find_bool("tokenizer.ggml.add_bos_token").value_or(false);
  return data;
}

// tokenizer_config.json writes a token as its text or as {"content": text}.
std::optional<std::string> token_text(const json& config, const char* key) {
  if (!config.is_object()) return std::nullopt;
  auto it = config.find(key);
  if (it == config.end() || it->is_null()) return std::nullopt;
  const json* text = &*it;
  if (text->is_object()) {
    const auto content = text->find("content");
    text = content == text->end() ? nullptr : &*content;
  }
  if (text == nullptr || !text->is_string()) {
    bad_file("tokenizer_config.json: key {}: expected a token's text, got {}", key, it->dump());
  }
  return text->get<std::string>();
}

std::optional<int32_t> named_token(const TokenizerData& data, const Checkpoint& checkpoint,
                                   const char* role) {
  const std::string key = fmt::format("{}_token", role);
  if (const auto text = token_text(checkpoint.tokenizer_config(), key.c_str())) {
    const auto found = std::find(data.pieces.begin(), data.pieces.end(), *text);
    if (found == data.pieces.end()) {
      bad_file("tokenizer_config.json: key {}: '{}' is not in the vocabulary", key, text->substr(0, 64));
    }
    return static_cast<int32_t>(found - data.pieces.begin());
  }
  return std::nullopt;
}

// tokenizer_config.json's token, else what tokenizer.json implies, else the model's configuration.
std::optional<int32_t> special_token(const TokenizerData& data, const Checkpoint& checkpoint,
                                     const char* role, std::optional<int32_t> implied) {
  if (const auto named = named_token(data, checkpoint, role)) return named;
  if (implied) return implied;
  const auto ids = config_token_ids(checkpoint, fmt::format("{}_token_id", role), data.pieces.size());
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

TokenizerData data_from_folder(const Checkpoint& checkpoint, const std::string& file) {
  TokenizerData data = tokenizer_data_from_json(read_text_file(file), file);
  data.bos = special_token(data, checkpoint, "bos", data.bos);
  data.eos = special_token(data, checkpoint, "eos", data.eos);
  data.pad = special_token(data, checkpoint, "pad", data.pad);
  const json& config = checkpoint.tokenizer_config();
  const auto add_bos = config.is_object() ? config.find("add_bos_token") : config.end();
  if (config.is_object() && add_bos != config.end() && add_bos->is_boolean())
    data.add_bos = add_bos->get<bool>();
  return data;
}

}  // namespace

Tokenizer load_tokenizer(const Checkpoint& checkpoint) {
  TokenizerData data;
  std::string file = checkpoint.path().string();
  if (checkpoint.container() == Checkpoint::Container::kGguf) {
    data = data_from_gguf(checkpoint.gguf(), file);
  } else {
    const auto json_file = checkpoint.tokenizer_json();
    if (!json_file) fail(Error::Kind::kNotFound, "{}: no tokenizer: tokenizer.json is missing", file);
    file = json_file->string();
    data = data_from_folder(checkpoint, file);
  }
  // Gemma's files say false and leave it to the chat template; without BOS plain text completes badly.
  if (data.scheme == Scheme::kCharacterBpe && data.bos) data.add_bos = true;
  if (!data.bos) data.add_bos = false;
  return Tokenizer(std::move(data), file);
}

constexpr const char* kSuppressKey = "tokenizer.ggml.suppress_tokens";

std::vector<int32_t> stop_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                              const Dialogue& dialogue) {
  std::vector<int32_t> ids = dialogue.stop_ids(tokenizer);
  if (tokenizer.data().eos) ids.push_back(*tokenizer.data().eos);
  const auto n_tokens = static_cast<size_t>(tokenizer.vocab_size());
  if (checkpoint.container() == Checkpoint::Container::kGguf) {
    for (const char* name : {"eos", "eot", "eom"}) {
      const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
      if (const auto id = gguf_token_id(checkpoint.gguf(), key, n_tokens, checkpoint.path().string())) {
        ids.push_back(*id);
      }
    }
  } else {
    const auto more = config_token_ids(checkpoint, "eos_token_id", n_tokens);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::vector<int32_t> suppressed_ids(const Checkpoint& checkpoint, const Tokenizer& tokenizer) {
  const auto n_tokens = static_cast<size_t>(tokenizer.vocab_size());
  if (checkpoint.container() != Checkpoint::Container::kGguf) {
    return config_token_ids(checkpoint, "suppress_tokens", n_tokens);
  }
  std::vector<int32_t> ids;
  for (const int64_t id : checkpoint.gguf().find_ints(kSuppressKey).value_or(std::vector<int64_t>{})) {
    if (id < 0 || static_cast<uint64_t>(id) >= n_tokens) {
      bad_file("{}: key {}: expected ids from 0 to {}, got {}", checkpoint.path().string(), kSuppressKey,
               n_tokens - 1, id);
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace synod
