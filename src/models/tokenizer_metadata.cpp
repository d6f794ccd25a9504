// write_tokenizer_metadata: the tokenizer.ggml.* keys that llama.cpp needs to load a file.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/model.h"

namespace synod {
namespace {

using nlohmann::json;
using Scheme = TokenizerData::Scheme;

constexpr int64_t kMaxVocabulary = 1 << 24;

// Control tokens that readers must print, or tool calls and reasoning would lose their markers.
constexpr std::array<std::string_view, 7> kPrintedMarkers = {
    "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", "<|\"|>"};

// Rows of the embedding; readers insist that there are as many tokens. 0 when the file does not say.
int64_t embedding_rows(const Checkpoint& checkpoint) {
  if (checkpoint.container() == Checkpoint::Container::kGguf) return 0;
  const json& config = checkpoint.config();
  const auto text = config.find("text_config");
  for (const json* object : {text == config.end() ? nullptr : &*text, &config}) {
    if (object == nullptr || !object->is_object()) continue;
    const auto it = object->find("vocab_size");
    if (it == object->end() || it->is_null()) continue;
    if (!it->is_number_integer() || it->get<int64_t>() < 1 || it->get<int64_t>() > kMaxVocabulary) {
      bad_file("config.json: vocab_size: expected 1 to {}, got {}", kMaxVocabulary, it->dump());
    }
    return it->get<int64_t>();
  }
  return 0;
}

TokenKind written_kind(const TokenizerData& data, size_t id) {
  const bool printed =
      std::find(kPrintedMarkers.begin(), kPrintedMarkers.end(), data.pieces[id]) != kPrintedMarkers.end();
  if (data.scheme == Scheme::kCharacterBpe && printed && data.kinds[id] == TokenKind::kControl) {
    return TokenKind::kUserDefined;
  }
  return data.kinds[id];
}

std::vector<std::string> written_merges(const TokenizerData& data) {
  std::vector<std::string> merges;
  merges.reserve(data.merges.size());
  for (const auto& [left, right] : data.merges) {
    if (left.find(' ', 1) != std::string::npos) {
      bad_file("tokenizer: the merge of '{}' and '{}' cannot be written to GGUF: its left piece has a blank",
               left, right);
    }
    merges.push_back(left + " " + right);
  }
  return merges;
}

void write_id(std::string_view name, std::optional<int32_t> id, GgufMetadata& out) {
  if (id) out.set_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*id));
}

}  // namespace

void write_tokenizer_metadata(const Checkpoint& checkpoint, const Tokenizer& tokenizer,
                              std::string_view architecture, GgufMetadata& out) {
  const TokenizerData& data = tokenizer.data();
  const bool characters = data.scheme == Scheme::kCharacterBpe;
  const int64_t rows = embedding_rows(checkpoint);
  const auto n_pieces = static_cast<int64_t>(data.pieces.size());
  if (rows != 0 && n_pieces > rows) {
    bad_file("{}: the tokenizer has {} pieces, but the embedding only {} rows", architecture, n_pieces, rows);
  }

  std::vector<std::string> tokens = data.pieces;
  std::vector<int32_t> types;
  for (size_t id = 0; id < data.pieces.size(); ++id)
    types.push_back(static_cast<int32_t>(written_kind(data, id)));
  const auto n_tokens = static_cast<size_t>(std::max(rows, n_pieces));
  tokens.resize(n_tokens);
  types.resize(n_tokens, static_cast<int32_t>(TokenKind::kUnused));
  for (size_t id = 0; id < n_tokens; ++id) {  // readers look tokens up by text, so holes need one each
    if (tokens[id].empty()) tokens[id] = fmt::format("[PAD{}]", id);
  }

  out.set_string("tokenizer.ggml.model", characters ? "gemma4" : "gpt2");
  if (!characters) out.set_string("tokenizer.ggml.pre", "deepseek-v3");
  out.set_strings("tokenizer.ggml.tokens", std::move(tokens));
  // Expected by readers of the SentencePiece family, used by none for BPE.
  if (characters) out.set_f32s("tokenizer.ggml.scores", std::vector<float>(n_tokens, 0.0F));
  out.set_i32s("tokenizer.ggml.token_type", types);
  out.set_strings("tokenizer.ggml.merges", written_merges(data));
  write_id("bos", data.bos, out);
  write_id("eos", data.eos, out);
  write_id("unknown", data.unk, out);
  write_id("padding", data.pad, out);
  write_id("eot", characters ? tokenizer.find("<turn|>") : std::nullopt, out);
  if (const auto ids = suppressed_ids(checkpoint, tokenizer); !ids.empty()) {
    out.set_i32s("tokenizer.ggml.suppress_tokens", ids);
  }
  out.set_bool("tokenizer.ggml.add_bos_token", data.add_bos);
  out.set_bool("tokenizer.ggml.add_space_prefix", false);
  if (auto text = checkpoint.chat_template()) out.set_string("tokenizer.chat_template", std::move(*text));
}

}  // namespace synod
