// What the grammar fuzz targets share: a small vocabulary, small limits, a walk through masks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace synod::fuzz {

inline const std::shared_ptr<const Vocabulary>& vocabulary() {
  static const auto made = [] {
    std::vector<std::string> bytes(2);
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, char(byte));
    for (const char* more :
         {"\": ", "\", \"", "\"}", "{\"", "[{", "}]", "ab", "\xC3\xA9", "\xF0\x9F", "10", "true"}) {
      bytes.emplace_back(more);
    }
    const int32_t stops[] = {0};
    return std::make_shared<const Vocabulary>(std::move(bytes), stops);
  }();
  return made;
}

inline GrammarLimits small_limits() {
  GrammarLimits limits;
  limits.max_states = 20'000;
  limits.max_terms = 100'000;
  limits.cache_bytes = size_t(1) << 20;
  return limits;
}

// Writes up to 40 tokens; the text when it could end. Traps when a mask and accept() disagree.
inline std::optional<std::string> walk(const std::shared_ptr<const Grammar>& grammar, uint64_t seed) {
  const Vocabulary& all = grammar->vocabulary();
  GrammarState state(grammar);
  std::string text;
  std::vector<uint32_t> words(all.n_words());
  constexpr int kSteps = 40;
  for (int step = 0; step < kSteps; ++step) {
    if (!state.mask(words)) break;  // only where the stacks are as deep as allowed: every byte is a token
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < all.size(); ++id) {
      const bool allowed = words[size_t(id) / 32] >> (id & 31) & 1;
      if (allowed) ids.push_back(id);
      if (id % 7 == step % 7 && allowed != state.allows(id)) __builtin_trap();
    }
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const int32_t id = ids[size_t(seed >> 33) % ids.size()];
    if (!state.accept(id)) __builtin_trap();
    if (state.is_finished()) return text;
    text += all.bytes_of(id);
  }
  return state.is_complete() ? std::optional(text) : std::nullopt;
}

}  // namespace synod::fuzz
