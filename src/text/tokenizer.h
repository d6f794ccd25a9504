// Tokenizers of the two families: Gemma's BPE over characters with byte fallback, DeepSeek's byte-level BPE
// with three pre-splits. Both come from tokenizer.json or from GGUF metadata, through TokenizerData.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace synod {

enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// What defines a tokenizer, whatever the file. Indexed by token id.
struct TokenizerData {
  enum class Scheme { kCharacterBpe, kByteLevelBpe };  // gemma4; gpt2 with the deepseek splits

  Scheme scheme = Scheme::kCharacterBpe;
  // Pieces as stored: U+2581 for blanks and <0xHH> for bytes (kCharacterBpe), byte alphabet (kByteLevelBpe).
  std::vector<std::string> pieces;
  std::vector<TokenKind> kinds;
  std::vector<std::pair<std::string, std::string>> merges;  // in rank order
  std::optional<int32_t> bos, eos, unk, pad;
  bool add_bos = false;  // the file asks encoders to prepend BOS
};

// Parses tokenizer.json. Refuses (kBadFile) normalizers, pre-tokenizers and models that are neither family's.
TokenizerData tokenizer_data_from_json(std::string_view json, const std::string& file_name);

class Tokenizer {
 public:
  // Validates `data` (ids in range, equal lengths, merges made of known pieces); `source` names the file.
  explicit Tokenizer(TokenizerData data, const std::string& source);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of `text` (any bytes; invalid UTF-8 is encoded byte by byte where the vocabulary allows). Never adds
  // BOS. With parse_special, added and special tokens in the text become their ids (longest match first);
  // without, text that looks special stays text. O(n log n).
  std::vector<int32_t> encode(std::string_view text, bool parse_special = false) const;

  // Bytes of one token: what it adds to the text. Control tokens give their text.
  std::string_view bytes_of(int32_t id) const;
  // Text of ids; invalid UTF-8 becomes U+FFFD. Control tokens are left out unless `keep_special`.
  std::string decode(std::span<const int32_t> ids, bool keep_special = true) const;

  int32_t vocab_size() const;
  TokenKind kind(int32_t id) const;
  std::optional<int32_t> find(std::string_view piece) const;  // exact stored piece, e.g. "<|turn>"
  const TokenizerData& data() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Incremental decoding: push() returns only complete UTF-8, flush() the rest (U+FFFD for what never
// completed).
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool keep_special = false);
  std::string push(int32_t id);
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool keep_special_;
  std::string pending_;
};

}  // namespace synod
