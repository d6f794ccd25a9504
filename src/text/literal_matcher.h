// Finds added tokens in text: leftmost match first, longest at its place. A byte trie; the cost per byte of
// text is bounded by the longest added token (31 bytes in the published vocabularies).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace synod {

class LiteralMatcher {
 public:
  struct Match {
    size_t begin, end;  // bytes of the text
    int32_t id;
  };

  LiteralMatcher();
  // `literal` is not empty. The first id given for a literal stays.
  void add(std::string_view literal, int32_t id);
  std::optional<Match> next(std::string_view text, size_t from) const;

 private:
  static uint64_t edge_key(uint32_t node, char byte) { return uint64_t(node) << 8 | uint8_t(byte); }
  Match longest_at(std::string_view text, size_t begin) const;

  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> ids_;  // by node, -1 where no literal ends; node 0 is the root
  std::array<bool, 256> starts_{};
};

}  // namespace synod
