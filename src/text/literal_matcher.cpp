#include "text/literal_matcher.h"

namespace synod {

LiteralMatcher::LiteralMatcher() : ids_(1, -1) {}

void LiteralMatcher::add(std::string_view literal, int32_t id) {
  uint32_t node = 0;
  for (const char byte : literal) {
    const auto [edge, added] = edges_.try_emplace(edge_key(node, byte), uint32_t(ids_.size()));
    if (added) ids_.push_back(-1);
    node = edge->second;
  }
  if (ids_[node] < 0) ids_[node] = id;
  starts_[uint8_t(literal.front())] = true;
}

std::optional<LiteralMatcher::Match> LiteralMatcher::next(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[uint8_t(text[begin])]) continue;
    const Match match = longest_at(text, begin);
    if (match.id >= 0) return match;
  }
  return std::nullopt;
}

LiteralMatcher::Match LiteralMatcher::longest_at(std::string_view text, size_t begin) const {
  Match best{begin, begin, -1};
  uint32_t node = 0;
  for (size_t pos = begin; pos < text.size(); ++pos) {
    const auto edge = edges_.find(edge_key(node, text[pos]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ids_[node] >= 0) best = {begin, pos + 1, ids_[node]};
  }
  return best;
}

}  // namespace synod
