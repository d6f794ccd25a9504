// tokenizer.json -> TokenizerData. The DOM parser checks the whole document before anything is read from it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/json_value.h"
#include "text/pipeline_check.h"
#include "text/tokenizer.h"
#include "text/tokenizer_limits.h"
#include "text/utf8.h"

namespace synod {
namespace {

using Scheme = TokenizerData::Scheme;

class Reader {
 public:
  explicit Reader(const JsonValue& root) : root_(root), model_(root.require("model")) {}

  TokenizerData read() {
    data_.scheme = check_pipeline(root_);
    read_vocabulary();
    read_added_tokens();
    read_merges();
    name_special_tokens();
    check_unknown_handling();
    return std::move(data_);
  }

 private:
  void check_length(std::string_view piece, const std::string& where) const {
    if (piece.size() <= kMaxPieceBytes) return;
    bad_file("{}: {}: a piece of {} bytes, more than the limit of {}", root_.file(), where, piece.size(),
             kMaxPieceBytes);
  }

  void make_room(int32_t id) {
    if (size_t(id) < data_.pieces.size()) return;
    data_.pieces.resize(size_t(id) + 1);
    data_.kinds.resize(size_t(id) + 1, TokenKind::kUnused);  // until something claims the id
    given_.resize(size_t(id) + 1, false);
  }

  void read_vocabulary() {
    const JsonValue vocab = model_.require("vocab");
    const simdjson::dom::object entries = vocab.object();
    data_.pieces.reserve(entries.size());
    for (const auto& [piece, value] : entries) {
      int64_t id = -1;
      if (value.get(id) != simdjson::SUCCESS || id < 0 || uint64_t(id) >= kMaxVocabulary) {
        bad_file("{}: model.vocab: piece '{}': expected a token id from 0 to {}, got {}", root_.file(),
                 piece.substr(0, 64), kMaxVocabulary - 1, simdjson::minify(value));
      }
      check_length(piece, "model.vocab");
      make_room(int32_t(id));
      if (given_[size_t(id)]) {
        bad_file("{}: model.vocab: id {} belongs to '{}' and to '{}'", root_.file(), id,
                 data_.pieces[size_t(id)], piece.substr(0, 64));
      }
      given_[size_t(id)] = true;
      data_.pieces[size_t(id)] = piece;
      const bool byte = data_.scheme == Scheme::kCharacterBpe && byte_of_piece(piece);
      data_.kinds[size_t(id)] = byte ? TokenKind::kByte : TokenKind::kNormal;
    }
    if (data_.pieces.empty()) bad_file("{}: model.vocab: is empty", root_.file());
  }

  void read_added_tokens() {
    const auto added = root_.member("added_tokens");
    if (!added) return;
    size_t i = 0;
    for (const auto element : added->array()) read_added_token(added->item(element, i++));
  }

  void read_added_token(const JsonValue& token) {
    const int32_t id = token.require("id").id(kMaxVocabulary);
    const std::string_view content = token.require("content").text();
    if (content.empty()) bad_file("{}: {}.content: is empty", root_.file(), token.where());
    check_length(content, token.where());
    for (const std::string_view key : {"single_word", "lstrip", "rstrip"}) {
      if (token.boolean_or(key, false)) token.require(key).refuse("false");
    }
    check_normalized(token, content);
    make_room(id);
    if (given_[size_t(id)] && data_.pieces[size_t(id)] != content) {
      bad_file("{}: {}: id {} belongs to '{}' in the vocabulary, not to '{}'", root_.file(), token.where(),
               id, data_.pieces[size_t(id)], content.substr(0, 64));
    }
    given_[size_t(id)] = true;
    data_.pieces[size_t(id)] = content;
    data_.kinds[size_t(id)] =
        token.boolean_or("special", false) ? TokenKind::kControl : TokenKind::kUserDefined;
  }

  // Normalized tokens are looked for in normalized text. The only normalizer changes blanks, so for all
  // others that is the same as looking in the text itself.
  void check_normalized(const JsonValue& token, std::string_view content) const {
    if (data_.scheme != Scheme::kCharacterBpe || !token.boolean_or("normalized", false)) return;
    const bool has_blank =
        content.find(' ') != std::string_view::npos || content.find("\xE2\x96\x81") != std::string_view::npos;
    if (has_blank) token.refuse("normalized false for a token with blanks");
  }

  void read_merges() {
    const JsonValue merges = model_.require("merges");
    const simdjson::dom::array entries = merges.array();
    data_.merges.reserve(std::min(entries.size(), kMaxMerges));
    size_t rank = 0;
    for (const auto entry : entries) {
      if (rank == kMaxMerges) bad_file("{}: model.merges: more than {} entries", root_.file(), kMaxMerges);
      data_.merges.push_back(read_merge(merges, entry, rank++));
    }
  }

  // ["left", "right"] or "left right".
  std::pair<std::string, std::string> read_merge(const JsonValue& merges, simdjson::dom::element entry,
                                                 size_t rank) const {
    std::string_view left, right;
    simdjson::dom::array pair;
    if (entry.get(pair) == simdjson::SUCCESS) {
      if (pair.size() == 2 && pair.at(0).get(left) == simdjson::SUCCESS &&
          pair.at(1).get(right) == simdjson::SUCCESS && !left.empty() && !right.empty()) {
        return {std::string(left), std::string(right)};
      }
    } else if (std::string_view text; entry.get(text) == simdjson::SUCCESS) {
      const size_t blank = text.find(' ', 1);
      if (blank != std::string_view::npos && blank + 1 < text.size()) {
        return {std::string(text.substr(0, blank)), std::string(text.substr(blank + 1))};
      }
    }
    merges.item(entry, rank).refuse("\"left right\" or [\"left\", \"right\"]");
  }

  std::optional<int32_t> find(std::string_view piece) const {
    const auto found = std::find(data_.pieces.begin(), data_.pieces.end(), piece);
    if (found == data_.pieces.end()) return std::nullopt;
    return int32_t(found - data_.pieces.begin());
  }

  // The format has no place for the roles of tokens: each family always uses the same names.
  void name_special_tokens() {
    const bool characters = data_.scheme == Scheme::kCharacterBpe;
    data_.bos = find(characters ? "<bos>" : "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C>");
    data_.eos = find(characters ? "<eos>" : "<\uFF5Cend\u2581of\u2581sentence\uFF5C>");
    data_.pad = find(characters ? "<pad>" : "<\uFF5C\u2581pad\u2581\uFF5C>");
    if (const auto unk = model_.member("unk_token")) {
      data_.unk = find(unk->text());
      if (!data_.unk) unk->refuse("a piece of the vocabulary");
      TokenKind& kind = data_.kinds[size_t(*data_.unk)];
      if (kind == TokenKind::kNormal) kind = TokenKind::kUnknown;
    }
    if (const auto leading = leading_special_token(root_)) {
      data_.bos = find(*leading);
      if (!data_.bos) {
        bad_file("{}: post_processor: the token '{}' is not in the vocabulary", root_.file(), *leading);
      }
      data_.add_bos = true;
    }
  }

  // Unknown characters are fused into one <unk>. Files that do not fuse are the same while nothing is
  // unknown.
  void check_unknown_handling() const {
    if (!data_.unk || model_.boolean_or("fuse_unk", false)) return;
    for (int byte = 0; byte < 256; ++byte) {
      std::string piece;
      if (data_.scheme == Scheme::kCharacterBpe) {
        piece = fmt::format("<0x{:02X}>", byte);
      } else {
        append_utf8(piece, byte_to_character(static_cast<unsigned char>(byte)));
      }
      if (!find(piece)) {
        bad_file(
            "{}: model.fuse_unk: supported is true when bytes are missing from the vocabulary ('{}'), got "
            "false",
            root_.file(), piece);
      }
    }
  }

  const JsonValue& root_;
  JsonValue model_;
  TokenizerData data_;
  std::vector<bool> given_;  // by id
};

}  // namespace

TokenizerData tokenizer_data_from_json(std::string_view json, const std::string& file_name) {
  if (json.empty()) bad_file("{}: expected a JSON document, got an empty file", file_name);
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  if (error != simdjson::SUCCESS) {
    bad_file("{}: not a valid JSON document: {}", file_name, simdjson::error_message(error));
  }
  return Reader(JsonValue(root, file_name, "")).read();
}

}  // namespace synod
