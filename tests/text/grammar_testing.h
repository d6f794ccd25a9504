// What the grammar tests share: vocabularies, walks that compare masks with the plain matcher, error
// messages.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/grammar/builder.h"
#include "text/grammar/grammar.h"
#include "text/grammar_reference.h"
#include "text/text_testing.h"

namespace synod::grammar_testing {

// Ids: 0 stop, 1 and 2 control tokens without text, then all single bytes, then `extra`.
constexpr int32_t kStop = 0, kControlA = 1, kControlB = 2, kFirstByte = 3;

inline std::shared_ptr<const Vocabulary> small_vocabulary(const std::vector<std::string>& extra) {
  std::vector<std::string> bytes(3);
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, char(byte));
  bytes.insert(bytes.end(), extra.begin(), extra.end());
  const int32_t stops[] = {kStop};
  return std::make_shared<Vocabulary>(std::move(bytes), stops);
}

// Tokens cut from strings over `alphabet`, some of them in the middle of a character.
inline std::shared_ptr<const Vocabulary> random_vocabulary(text_testing::RandomText& random,
                                                           const std::vector<std::string>& alphabet,
                                                           size_t n) {
  std::set<std::string> tokens;
  for (size_t i = 0; i < n; ++i) {
    std::string token = random.from(alphabet, 1 + random.below(4));
    if (random.below(4) == 0) token = token.substr(random.below(2), token.size() - random.below(2));
    if (token.size() > 1) tokens.insert(token);
  }
  std::vector<std::string> extra(tokens.begin(), tokens.end());
  if (!extra.empty()) extra.push_back(extra[0]);  // two ids with the same text
  return small_vocabulary(extra);
}

inline bool has(const std::vector<uint32_t>& words, int32_t id) {
  return words[size_t(id) / 32] >> (id & 31) & 1;
}

inline std::vector<int32_t> allowed_ids(const GrammarState& state, const Vocabulary& vocabulary) {
  std::vector<uint32_t> words(vocabulary.n_words());
  state.mask(words);
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (has(words, id)) ids.push_back(id);
  }
  return ids;
}

// Walks through masks at random. At each step the mask must hold exactly what the plain matcher accepts; with
// `exhaustive`, accept() is asked about every id too. Returns the text.
inline std::string compare_walk(const std::shared_ptr<const Grammar>& grammar, const TermTree& tree,
                                Term root, text_testing::RandomText& random, size_t n_steps,
                                bool exhaustive) {
  const Vocabulary& vocabulary = grammar->vocabulary();
  GrammarState state(grammar);
  ReferenceMatcher reference(tree, root);
  std::string text;
  std::vector<uint32_t> words(vocabulary.n_words());
  constexpr size_t kMaxStacks = 300;  // the plain matcher is exponential where the grammar is ambiguous
  for (size_t step = 0; step < n_steps && reference.n_stacks() <= kMaxStacks; ++step) {
    EXPECT_EQ(state.is_complete(), reference.complete()) << "after '" << text << "'";
    state.mask(words);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      bool expected = vocabulary.is_stop(id) && reference.complete();
      if (!expected) {
        ReferenceMatcher copy = reference;
        expected = copy.accept(id, vocabulary);
      }
      EXPECT_EQ(has(words, id), expected)
          << "token " << id << " '" << vocabulary.bytes_of(id) << "' after '" << text << "'";
      if (exhaustive) {
        EXPECT_EQ(state.allows(id), expected) << "token " << id << " after '" << text << "'";
      }
      if (has(words, id) && !vocabulary.is_stop(id)) allowed.push_back(id);
    }
    if (testing::Test::HasFailure() || allowed.empty()) break;
    const int32_t id = allowed[random.below(allowed.size())];
    EXPECT_TRUE(state.accept(id));
    reference.accept(id, vocabulary);
    text += vocabulary.bytes_of(id);
  }
  return text;
}

template <typename Work>
std::string usage_message(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// Feeds whole text byte by byte: matched completely, a viable prefix, or refused.
enum class Verdict { kMatch, kPrefix, kRefused };
inline Verdict verdict(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarState state(grammar);
  for (const char c : text) {
    if (!state.accept(kFirstByte + uint8_t(c))) return Verdict::kRefused;
  }
  return state.is_complete() ? Verdict::kMatch : Verdict::kPrefix;
}

}  // namespace synod::grammar_testing
