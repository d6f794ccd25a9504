#include "text/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "text/utf8.h"

namespace synod {

namespace {

// Characters when all are plain (see Vocabulary::slice); 0 otherwise.
size_t plain_characters(std::string_view bytes) {
  size_t n = 0;
  for (size_t pos = 0; pos < bytes.size(); ++n) {
    const Utf8Char c = decode_utf8(bytes, pos);
    if (c.status != Utf8Status::kValid || c.value < 0x20 || c.value == 0x7F || c.value == '"' ||
        c.value == '\\') {
      return 0;
    }
    pos += c.length;
  }
  return n;
}

// `ids` sorted by bytes. Nodes are made as the bytes diverge from the previous token's; a node's subtree ends
// where the next node of no greater depth begins.
Vocabulary::Trie make_trie(const std::vector<std::string>& bytes, std::vector<int32_t> ids) {
  Vocabulary::Trie trie;
  const auto add_node = [&trie](uint8_t byte, size_t depth, size_t first_token) {
    trie.byte.push_back(byte);
    trie.depth.push_back(uint16_t(depth));
    trie.end.push_back(0);
    trie.first_token.push_back(uint32_t(first_token));
  };
  add_node(0, 0, 0);
  std::vector<uint32_t> path{0};
  std::string_view previous;
  const auto close_to = [&](size_t length) {
    for (; path.size() > length; path.pop_back()) trie.end[path.back()] = uint32_t(trie.n_nodes());
  };
  for (size_t t = 0; t < ids.size(); ++t) {
    const std::string_view text = bytes[size_t(ids[t])];
    size_t shared = 0;
    while (shared < previous.size() && shared < text.size() && previous[shared] == text[shared]) ++shared;
    close_to(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(uint32_t(trie.n_nodes()));
      // Tokens before this one end at earlier nodes; nodes on the way carry none.
      add_node(uint8_t(text[i]), i + 1, t);
    }
    previous = text;
  }
  close_to(0);
  trie.first_token.push_back(uint32_t(ids.size()));
  trie.ids = std::move(ids);
  return trie;
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; });
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> bytes, std::span<const int32_t> stop_ids)
    : bytes_(std::move(bytes)), stop_ids_(stop_ids.begin(), stop_ids.end()) {
  std::sort(stop_ids_.begin(), stop_ids_.end());
  stop_ids_.erase(std::unique(stop_ids_.begin(), stop_ids_.end()), stop_ids_.end());
  is_stop_.assign(bytes_.size(), false);
  for (const int32_t id : stop_ids_) {
    if (id < 0 || size_t(id) >= bytes_.size()) {
      fail(Error::Kind::kUsage, "vocabulary: stop id {}: expected 0 to {}", id, int64_t(bytes_.size()) - 1);
    }
    is_stop_[size_t(id)] = true;
    bytes_[size_t(id)].clear();
  }
  std::vector<int32_t> ids;
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id].size() > kMaxTokenBytes) {
      fail(Error::Kind::kUsage, "vocabulary: token {}: expected at most {} bytes, got {}", id, kMaxTokenBytes,
           bytes_[id].size());
    }
    if (!bytes_[id].empty()) ids.push_back(int32_t(id));
  }
  std::sort(ids.begin(), ids.end(), [this](int32_t a, int32_t b) {
    const int order = bytes_[size_t(a)].compare(bytes_[size_t(b)]);
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<int32_t> unsliced;
  for (auto& slice : slices_) slice.assign(n_words(), 0);
  for (const int32_t id : ids) {
    const size_t n = plain_characters(bytes_[size_t(id)]);
    if (n == 0 || n > kMaxSliceCharacters) {
      unsliced.push_back(id);
      continue;
    }
    longest_plain_ = std::max(longest_plain_, n);
    slices_[n - 1][size_t(id) / 32] |= uint32_t(1) << (id & 31);
  }
  for (size_t n = 1; n < kMaxSliceCharacters; ++n) {
    for (size_t word = 0; word < n_words(); ++word) slices_[n][word] |= slices_[n - 1][word];
  }
  trie_ = make_trie(bytes_, std::move(ids));
  unsliced_ = make_trie(bytes_, std::move(unsliced));
}

std::shared_ptr<const Vocabulary> Vocabulary::from_tokenizer(const Tokenizer& tokenizer,
                                                             std::span<const int32_t> stop_ids) {
  const auto n = size_t(tokenizer.vocab_size());
  std::vector<std::string> bytes(n);
  std::vector<std::pair<std::string, int32_t>> names;
  for (size_t id = 0; id < n; ++id) {
    const std::string_view text = tokenizer.bytes_of(int32_t(id));
    const TokenKind kind = tokenizer.kind(int32_t(id));
    const bool is_text = kind == TokenKind::kNormal || kind == TokenKind::kByte ||
                         (kind == TokenKind::kUserDefined && is_blank(text));
    if (is_text && text.size() <= kMaxTokenBytes) {
      bytes[id] = text;
    } else if (!text.empty() && kind != TokenKind::kUnused) {
      names.emplace_back(text, int32_t(id));
    }
  }
  auto vocabulary = std::make_shared<Vocabulary>(std::move(bytes), stop_ids);
  std::sort(names.begin(), names.end());
  vocabulary->names_ = std::move(names);
  return vocabulary;
}

int32_t Vocabulary::find_named(std::string_view name) const {
  const auto found =
      std::lower_bound(names_.begin(), names_.end(), name,
                       [](const auto& entry, std::string_view key) { return entry.first < key; });
  if (found != names_.end() && found->first == name) return found->second;
  // A text token of exactly these bytes.
  const auto by_bytes = std::lower_bound(
      trie_.ids.begin(), trie_.ids.end(), name,
      [this](int32_t id, std::string_view key) { return std::string_view(bytes_[size_t(id)]) < key; });
  return by_bytes != trie_.ids.end() && bytes_[size_t(*by_bytes)] == name ? *by_bytes : -1;
}

}  // namespace synod
