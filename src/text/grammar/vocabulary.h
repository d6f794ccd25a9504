// A vocabulary as constrained output sees it: which bytes a token adds, which ids carry no text, which ids
// end the text. Built once per model and shared by all its grammars.
//
// Text tokens lie in a byte trie in preorder (arrays, no pointers): a walk is one forward scan that skips a
// subtree by jumping to its end. Beside it stand "slices": masks of the tokens that consist of at most k
// plain characters. A state that treats all plain characters alike (the inside of a JSON string) takes a
// slice as a whole and walks only the few tokens that are in none.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace synod {

class Vocabulary {
 public:
  // Bytes of every id; an empty string marks an id without text (control tokens, unused ids). Such ids are
  // never part of text; grammars can name them by id only. `stop_ids` end the text and never carry text
  // themselves. Throws kUsage when a stop id is out of range or a token has more than kMaxTokenBytes.
  static constexpr size_t kMaxTokenBytes = 60'000;
  Vocabulary(std::vector<std::string> bytes, std::span<const int32_t> stop_ids);

  // Text ids are the normal and byte tokens, and user-defined tokens made only of blanks (runs of spaces,
  // newlines). Every other user-defined token may be dialogue markup, so text never becomes one.
  static std::shared_ptr<const Vocabulary> from_tokenizer(const Tokenizer& tokenizer,
                                                          std::span<const int32_t> stop_ids);

  int32_t size() const { return int32_t(bytes_.size()); }
  size_t n_words() const { return (bytes_.size() + 31) / 32; }  // of a mask: bit (id & 31) of word id / 32
  bool is_text(int32_t id) const { return !bytes_[size_t(id)].empty(); }
  bool is_stop(int32_t id) const { return is_stop_[size_t(id)]; }
  std::string_view bytes_of(int32_t id) const { return bytes_[size_t(id)]; }
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  // Id of the token whose stored text is `name`, special ones included, or -1. For <name> in GBNF.
  int32_t find_named(std::string_view name) const;

  // Trie of the text tokens. Node 0 is the root; children follow their parent, in byte order.
  struct Trie {
    std::vector<uint8_t> byte;    // on the edge into the node; unused for the root
    std::vector<uint16_t> depth;  // bytes from the root
    std::vector<uint32_t> end;    // one past the subtree
    std::vector<uint32_t>
        first_token;  // tokens of node n: ids[first_token[n]] .. ids[first_token[n + 1] - 1]
    std::vector<int32_t> ids;
    size_t n_nodes() const { return byte.size(); }
  };
  const Trie& trie() const { return trie_; }               // every text token
  const Trie& unsliced_trie() const { return unsliced_; }  // those in no slice

  // Plain: well-formed UTF-8 without control characters (below U+0020, U+007F), '"' and '\'.
  static constexpr size_t kMaxSliceCharacters = 32;
  // Words of the mask of the tokens with 1..n plain characters; n from 1 to kMaxSliceCharacters.
  std::span<const uint32_t> slice(size_t n) const { return slices_[n - 1]; }
  size_t longest_plain() const { return longest_plain_; }  // characters of the longest sliced token

 private:
  std::vector<std::string> bytes_;
  std::vector<int32_t> stop_ids_;
  std::vector<bool> is_stop_;
  std::vector<std::pair<std::string, int32_t>> names_;  // sorted; ids without text, and markup
  Trie trie_, unsliced_;
  std::array<std::vector<uint32_t>, kMaxSliceCharacters> slices_;
  size_t longest_plain_ = 0;
};

}  // namespace synod
