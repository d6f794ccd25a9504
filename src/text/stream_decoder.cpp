#include "text/tokenizer.h"
#include "text/utf8.h"

namespace synod {
namespace {

// Each family's published decoder marks damage in its own way.
Utf8Repair repair_of(const Tokenizer& tokenizer) {
  const bool characters = tokenizer.data().scheme == TokenizerData::Scheme::kCharacterBpe;
  return characters ? Utf8Repair::kPerByte : Utf8Repair::kPerSubpart;
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool keep_special)
    : tokenizer_(tokenizer), keep_special_(keep_special) {}

std::string StreamDecoder::push(int32_t id) {
  const TokenKind kind = tokenizer_.kind(id);
  const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
  if (special && !keep_special_) return {};
  pending_ += tokenizer_.bytes_of(id);
  std::string text;
  pending_.erase(0, append_repaired(text, pending_, repair_of(tokenizer_), /*at_end=*/false));
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  append_repaired(text, pending_, repair_of(tokenizer_), /*at_end=*/true);
  pending_.clear();
  return text;
}

}  // namespace synod
