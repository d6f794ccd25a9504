#include "models/dialogue.h"

namespace synod {
namespace {

bool is_border(const Tokenizer& tokenizer, int32_t id) {
  const TokenKind kind = tokenizer.kind(id);
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined;
}

// Ids of a prompt under construction. Merges may cross the edges of pieces ("user\n" + "\nHi"), as they do
// when a template's whole output is encoded at once, but never make a control token out of what people wrote.
class PromptEncoder {
 public:
  explicit PromptEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add_text(std::string_view text) { pending_ += text; }

  void add_markup(const std::string& text) {
    const std::vector<int32_t> ids = tokenizer_.encode(text, /*parse_special=*/true);
    std::string restored;
    for (const int32_t id : ids) restored += tokenizer_.bytes_of(id);
    if (restored != text) {  // characters outside the vocabulary: their bytes are lost, so no merging
      flush();
      ids_.insert(ids_.end(), ids.begin(), ids.end());
      return;
    }
    for (const int32_t id : ids) {
      if (is_border(tokenizer_, id)) {
        flush();
        ids_.push_back(id);
      } else {
        pending_ += tokenizer_.bytes_of(id);
      }
    }
  }

  std::vector<int32_t> finish() {
    flush();
    return std::move(ids_);
  }

 private:
  void flush() {
    const std::vector<int32_t> ids = tokenizer_.encode(pending_, /*parse_special=*/false);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    pending_.clear();
  }

  const Tokenizer& tokenizer_;
  std::string pending_;  // text since the last control token
  std::vector<int32_t> ids_;
};

}  // namespace

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const std::vector<PromptPiece>& pieces) {
  PromptEncoder encoder(tokenizer);
  for (const PromptPiece& piece : pieces) {
    if (piece.is_markup) {
      encoder.add_markup(piece.text);
    } else {
      encoder.add_text(piece.text);
    }
  }
  return encoder.finish();
}

std::string join(const std::vector<PromptPiece>& pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace synod
