// Checks a TokenizerData and turns it into tables; encodes by added tokens, splits, first symbols, merges.
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/deepseek_split.h"
#include "text/literal_matcher.h"
#include "text/piece_index.h"
#include "text/tokenizer_limits.h"
#include "text/utf8.h"

namespace synod {
namespace {

using Scheme = TokenizerData::Scheme;

constexpr char32_t kVisibleBlank = 0x2581;
constexpr std::string_view kVisibleBlankText = "\xE2\x96\x81";
constexpr size_t kMaxSectionBytes = size_t(1) << 31;

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t pos = 0;
  for (size_t hit; (hit = text.find(from, pos)) != std::string_view::npos; pos = hit + from.size()) {
    out.append(text.substr(pos, hit - pos)).append(to);
  }
  return out.append(text.substr(pos));
}

// Tokens that mark structure. Text never becomes one of them unless special text is asked for.
bool is_structural(TokenKind kind) { return kind == TokenKind::kControl || kind == TokenKind::kUnknown; }

void check_data(const TokenizerData& data, const std::string& source) {
  if (data.pieces.empty()) bad_file("{}: the tokenizer has no pieces", source);
  if (data.pieces.size() > kMaxVocabulary) {
    bad_file("{}: the tokenizer has {} pieces, more than the limit of {}", source, data.pieces.size(),
             kMaxVocabulary);
  }
  if (data.kinds.size() != data.pieces.size()) {
    bad_file("{}: the tokenizer has {} pieces but {} token types", source, data.pieces.size(),
             data.kinds.size());
  }
  if (data.merges.size() > kMaxMerges) {
    bad_file("{}: the tokenizer has {} merges, more than the limit of {}", source, data.merges.size(),
             kMaxMerges);
  }
  for (size_t id = 0; id < data.pieces.size(); ++id) {
    if (data.pieces[id].size() > kMaxPieceBytes) {
      bad_file("{}: token {} has {} bytes, more than the limit of {}", source, id, data.pieces[id].size(),
               kMaxPieceBytes);
    }
    const int kind = int(data.kinds[id]);
    if (kind < int(TokenKind::kNormal) || kind > int(TokenKind::kByte)) {
      bad_file("{}: token {} has type {}, expected 1 to 6", source, id, kind);
    }
  }
  const std::pair<const char*, std::optional<int32_t>> named[] = {
      {"bos", data.bos}, {"eos", data.eos}, {"unk", data.unk}, {"pad", data.pad}};
  for (const auto& [name, id] : named) {
    if (id && (*id < 0 || size_t(*id) >= data.pieces.size())) {
      bad_file("{}: the {} token has id {}, expected 0 to {}", source, name, *id, data.pieces.size() - 1);
    }
  }
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerData data;
  PieceIndex index;
  MergeTable merges;
  LiteralMatcher literals;
  std::array<int32_t, 256> byte_ids{};  // first symbol of each byte, -1 where the vocabulary has none
  std::vector<int32_t> character_ids;   // first symbol by code point (kCharacterBpe), -1 where there is none
  std::string token_bytes;              // bytes of all tokens, end to end
  std::vector<size_t> byte_offsets;     // [n_pieces + 1] into token_bytes

  Impl(TokenizerData checked, const std::string& source)
      : data(std::move(checked)), index(data.pieces), merges(data.merges.size()) {
    if (data.scheme == Scheme::kCharacterBpe) alias_plain_blanks();
    fill_token_bytes();
    fill_first_symbols();
    fill_merges(source);
    fill_literals();
  }

  bool is_character_bpe() const { return data.scheme == Scheme::kCharacterBpe; }

  // GGUF converters write user-defined pieces with plain blanks, while merges keep the visible ones.
  void alias_plain_blanks() {
    for (size_t id = 0; id < data.pieces.size(); ++id) {
      if (data.kinds[id] != TokenKind::kUserDefined) continue;
      if (data.pieces[id].find(' ') == std::string::npos) continue;
      index.add_alias(replace_all(data.pieces[id], " ", kVisibleBlankText), int32_t(id));
    }
  }

  std::string compute_bytes(size_t id) const {
    const std::string& piece = data.pieces[id];
    const TokenKind kind = data.kinds[id];
    if (is_structural(kind)) return piece;
    if (!is_character_bpe()) {
      if (kind == TokenKind::kUserDefined) return piece;
      return bytes_from_alphabet(piece).value_or(piece);
    }
    if (kind != TokenKind::kUserDefined) {
      if (const auto byte = byte_of_piece(piece)) return std::string(1, char(*byte));
    }
    return replace_all(piece, kVisibleBlankText, " ");
  }

  void fill_token_bytes() {
    byte_offsets.reserve(data.pieces.size() + 1);
    for (size_t id = 0; id < data.pieces.size(); ++id) {
      byte_offsets.push_back(token_bytes.size());
      token_bytes += compute_bytes(id);
    }
    byte_offsets.push_back(token_bytes.size());
  }

  // Ordinary pieces first: a user-defined token of one character must not hide the vocabulary's own.
  void fill_first_symbols() {
    byte_ids.fill(-1);
    for (const bool user_defined : {false, true}) {
      for (size_t id = 0; id < data.pieces.size(); ++id) {
        if (is_structural(data.kinds[id])) continue;
        if ((data.kinds[id] == TokenKind::kUserDefined) != user_defined) continue;
        if (is_character_bpe()) {
          add_character(int32_t(id), user_defined);
        } else if (const auto bytes = bytes_from_alphabet(data.pieces[id]); bytes && bytes->size() == 1) {
          int32_t& slot = byte_ids[uint8_t(bytes->front())];
          if (slot < 0) slot = int32_t(id);
        }
      }
    }
  }

  void add_character(int32_t id, bool user_defined) {
    const std::string& piece = data.pieces[size_t(id)];
    if (const auto byte = byte_of_piece(piece); byte && !user_defined) {
      if (byte_ids[*byte] < 0) byte_ids[*byte] = id;
      return;
    }
    if (piece.empty()) return;
    const Utf8Char first = decode_utf8(piece, 0);
    if (first.status != Utf8Status::kValid || first.length != piece.size()) return;
    if (character_ids.size() <= first.value) character_ids.resize(first.value + 1, -1);
    if (character_ids[first.value] < 0) character_ids[first.value] = id;
  }

  int32_t known_piece(const std::string& piece, size_t rank, const std::string& source) const {
    const auto id = index.find(piece);
    if (!id)
      bad_file("{}: merge {} needs the piece '{}', which is not in the vocabulary", source, rank, piece);
    return *id;
  }

  void fill_merges(const std::string& source) {
    std::string joined;
    for (size_t rank = 0; rank < data.merges.size(); ++rank) {
      const auto& [left, right] = data.merges[rank];
      const int32_t left_id = known_piece(left, rank, source);
      const int32_t right_id = known_piece(right, rank, source);
      joined.assign(left).append(right);
      const int32_t merged = known_piece(joined, rank, source);
      // Otherwise plain text could be merged into a control token.
      if (is_structural(data.kinds[size_t(merged)])) continue;
      merges.add(left_id, right_id, uint32_t(rank), merged);
    }
  }

  void fill_literals() {
    for (size_t id = 0; id < data.pieces.size(); ++id) {
      const std::string& piece = data.pieces[id];
      const bool user_defined = data.kinds[id] == TokenKind::kUserDefined;
      if (piece.empty() || (!user_defined && !is_structural(data.kinds[id]))) continue;
      // Runs of blanks are listed as added tokens in their visible form; plain blanks belong to BPE.
      const bool only_blanks = piece.find_first_not_of(' ') == std::string::npos;
      if (user_defined && only_blanks && is_character_bpe()) {
        literals.add(replace_all(piece, " ", kVisibleBlankText), int32_t(id));
      } else {
        literals.add(piece, int32_t(id));
      }
    }
  }
};

namespace {

struct Tables {
  const TokenizerData& data;
  const std::array<int32_t, 256>& byte_ids;
  const std::vector<int32_t>& character_ids;
};

// First symbols of one stretch of text that holds no added token, then their merges.
class SectionEncoder {
 public:
  SectionEncoder(Tables tables, const MergeTable& merges) : tables_(tables), merger_(merges) {}

  void encode(std::string_view text, std::vector<int32_t>& ids) {
    if (text.size() >= kMaxSectionBytes) {
      fail(Error::Kind::kUsage, "text of {} bytes is too long to tokenize, the limit is {}", text.size(),
           kMaxSectionBytes - 1);
    }
    if (tables_.data.scheme == Scheme::kCharacterBpe) {
      start_characters(text);
      merger_.merge(symbols_, ids);
      return;
    }
    for (const std::string_view piece : split_deepseek(text)) {
      start();
      for (const char byte : piece) push_byte(uint8_t(byte));
      merger_.merge(symbols_, ids);
    }
  }

 private:
  void start() {
    symbols_.clear();
    after_unknown_ = false;
  }

  void push(int32_t id) {
    symbols_.push_back(id);
    after_unknown_ = false;
  }

  // Neighbouring unknown characters share one <unk>; without such a token they are left out.
  void push_unknown() {
    const auto& unk = tables_.data.unk;
    if (unk && !after_unknown_) symbols_.push_back(*unk);
    after_unknown_ = true;
  }

  void push_byte(uint8_t byte) {
    const int32_t id = tables_.byte_ids[byte];
    if (id >= 0) {
      push(id);
    } else {
      push_unknown();
    }
  }

  void start_characters(std::string_view text) {
    start();
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Char next = decode_utf8(text, pos);
      const std::string_view bytes = text.substr(pos, next.length);
      pos += next.length;
      if (next.status == Utf8Status::kValid) {
        push_character(next.value, bytes);
      } else {
        for (const char byte : bytes) push_byte(uint8_t(byte));
      }
    }
  }

  void push_character(char32_t value, std::string_view bytes) {
    if (value == ' ') {
      value = kVisibleBlank;
      bytes = kVisibleBlankText;
    }
    const int32_t id = value < tables_.character_ids.size() ? tables_.character_ids[value] : -1;
    if (id >= 0) return push(id);
    const bool all_known = std::all_of(bytes.begin(), bytes.end(),
                                       [&](char byte) { return tables_.byte_ids[uint8_t(byte)] >= 0; });
    if (!all_known) return push_unknown();
    for (const char byte : bytes) push(tables_.byte_ids[uint8_t(byte)]);
  }

  Tables tables_;
  BpeMerger merger_;
  std::vector<int32_t> symbols_;
  bool after_unknown_ = false;
};

}  // namespace

std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  int value = 0;
  for (const char digit : piece.substr(3, 2)) {
    if (digit >= '0' && digit <= '9') {
      value = value * 16 + (digit - '0');
    } else if (digit >= 'A' && digit <= 'F') {
      value = value * 16 + (digit - 'A' + 10);
    } else {
      return std::nullopt;
    }
  }
  return uint8_t(value);
}

Tokenizer::Tokenizer(TokenizerData data, const std::string& source) {
  check_data(data, source);
  impl_ = std::make_unique<Impl>(std::move(data), source);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  SectionEncoder sections({impl_->data, impl_->byte_ids, impl_->character_ids}, impl_->merges);
  std::vector<int32_t> ids;
  size_t pos = 0;
  while (parse_special) {
    const auto match = impl_->literals.next(text, pos);
    if (!match) break;
    sections.encode(text.substr(pos, match->begin - pos), ids);
    ids.push_back(match->id);
    pos = match->end;
  }
  sections.encode(text.substr(pos), ids);
  return ids;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  kind(id);  // checks the id
  const size_t begin = impl_->byte_offsets[size_t(id)];
  return std::string_view(impl_->token_bytes).substr(begin, impl_->byte_offsets[size_t(id) + 1] - begin);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool keep_special) const {
  StreamDecoder decoder(*this, keep_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  return text + decoder.flush();
}

int32_t Tokenizer::vocab_size() const { return int32_t(impl_->data.pieces.size()); }

TokenKind Tokenizer::kind(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail(Error::Kind::kNumeric, "token id {} is out of range, the vocabulary has {} entries", id,
         vocab_size());
  }
  return impl_->data.kinds[size_t(id)];
}

std::optional<int32_t> Tokenizer::find(std::string_view piece) const { return impl_->index.find(piece); }

const TokenizerData& Tokenizer::data() const { return impl_->data; }

}  // namespace synod
