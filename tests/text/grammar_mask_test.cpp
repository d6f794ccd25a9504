// Masks of large vocabularies: right on samples, fast when warm, bounded in memory; and the bundled models'
// own vocabularies against the plain matcher.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "formats/checkpoint.h"
#include "models/model.h"
#include "text/grammar_testing.h"
#include "text/synthetic_vocabulary.h"

namespace synod::grammar_testing {
namespace {

using text_testing::kTimingCounts;
using text_testing::RandomText;

const std::shared_ptr<const Vocabulary>& large() {
  static const auto vocabulary = synthetic_vocabulary(262'144);
  return vocabulary;
}

struct Named {
  const char* name;
  std::shared_ptr<const Grammar> grammar;
};

std::vector<Named> usual_grammars(const std::shared_ptr<const Vocabulary>& vocabulary) {
  GrammarBuilder b;
  const Term lazy =
      b.lazy({.tokens = {3}, .texts = {"<call>"}}, b.sequence({b.json_schema(kPersonSchema), b.token(4)}));
  return {{"schema", Grammar::from_json_schema(kPersonSchema, vocabulary)},
          {"free JSON", Grammar::json_object(vocabulary)},
          {"pattern", Grammar::from_json_schema(kPatternSchema, vocabulary)},
          {"arithmetic", Grammar::from_gbnf(kArithmetic, vocabulary)},
          {"lazy call", b.build(lazy, vocabulary)}};
}

// A token of the mask; every other time one of the first bytes, so that structure is reached too.
int32_t pick(const std::vector<uint32_t>& words, const Vocabulary& vocabulary, RandomText& random) {
  std::vector<int32_t> ids, short_ids;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!has(words, id) || vocabulary.is_stop(id)) continue;
    ids.push_back(id);
    if (vocabulary.bytes_of(id).size() == 1) short_ids.push_back(id);
  }
  if (ids.empty()) return -1;
  const auto& from = random.below(2) && !short_ids.empty() ? short_ids : ids;
  return from[random.below(from.size())];
}

TEST(GrammarMask, LargeVocabularyMasksAgreeWithAcceptOnSamples) {
  RandomText random(5);
  size_t n_checked = 0, n_allowed = 0;
  for (const Named& named : usual_grammars(large())) {
    std::vector<uint32_t> words(large()->n_words());
    for (int walk = 0; walk < 3; ++walk) {
      GrammarState state(named.grammar);
      for (int step = 0; step < 25; ++step) {
        if (!state.mask(words)) break;
        for (int sample = 0; sample < 150; ++sample) {
          auto id = int32_t(random.below(size_t(large()->size())));
          // Marks decide; words are plenty.
          if (sample % 3 == 0) id = int32_t(random.below(600));
          ASSERT_EQ(has(words, id), state.allows(id)) << named.name << " '" << large()->bytes_of(id) << "'";
          ++n_checked;
          n_allowed += has(words, id);
        }
        const int32_t id = pick(words, *large(), random);
        if (id < 0) break;
        ASSERT_TRUE(state.accept(id)) << named.name << " '" << large()->bytes_of(id) << "'";
      }
    }
  }
  std::printf("%zu tokens checked, %zu of them allowed\n", n_checked, n_allowed);
  EXPECT_GT(n_allowed, n_checked / 20);
}

TEST(GrammarMask, WarmMasksTakeFarLessThanAMillisecond) {
  RandomText random(6);
  for (const Named& named : usual_grammars(large())) {
    std::vector<uint32_t> words(large()->n_words());
    std::vector<double> warm;
    for (int walk = 0; walk < 2; ++walk) {
      RandomText same(17);  // the second walk meets the states of the first
      GrammarState state(named.grammar);
      for (int step = 0; step < 80; ++step) {
        const double taken = text_testing::seconds([&] { state.mask(words); });
        if (walk == 1) warm.push_back(taken * 1e6);
        const int32_t id = pick(words, *large(), same);
        if (id < 0) break;
        ASSERT_TRUE(state.accept(id));
      }
    }
    std::sort(warm.begin(), warm.end());
    std::printf("%s: warm mask p50 %.1f us, p99 %.1f us\n", named.name, warm[warm.size() / 2],
                warm[warm.size() * 99 / 100]);
    if (kTimingCounts) {
      EXPECT_LT(warm[warm.size() / 2], 1000.0) << named.name;
    }
  }
}

TEST(GrammarMask, CacheStaysWithinItsBound) {
  const auto vocabulary = synthetic_vocabulary(20'000);
  GrammarLimits limits;
  limits.cache_bytes = 200'000;
  const auto bounded = Grammar::from_json_schema(kPersonSchema, vocabulary, {}, limits);
  const auto free = Grammar::from_json_schema(kPersonSchema, vocabulary);
  RandomText random(8);
  std::vector<uint32_t> words(vocabulary->n_words()), other(vocabulary->n_words());
  size_t most = 0;
  for (int walk = 0; walk < 4; ++walk) {
    GrammarState a(bounded), b(free);
    for (int step = 0; step < 80; ++step) {
      a.mask(words);
      b.mask(other);
      ASSERT_EQ(words, other);
      most = std::max(most, bounded->cache_stats().bytes);
      const int32_t id = pick(words, *vocabulary, random);
      if (id < 0) break;
      ASSERT_TRUE(a.accept(id));
      ASSERT_TRUE(b.accept(id));
    }
  }
  const Grammar::CacheStats stats = bounded->cache_stats();
  std::printf("at most %zu bytes, %zu hits, %zu misses, %zu evictions\n", most, stats.hits, stats.misses,
              stats.evictions);
  EXPECT_GT(stats.evictions, 0u);
  // Entries, and as much again for the tables; one mask may overshoot before they are emptied.
  EXPECT_LT(most, 8 * limits.cache_bytes);
}

TEST(GrammarMask, StringsWithALimitStopAtIt) {
  const auto vocabulary = synthetic_vocabulary(20'000);
  const auto grammar = Grammar::from_json_schema(R"({"type":"string","maxLength":7})", vocabulary);
  GrammarState state(grammar);
  std::vector<uint32_t> words(vocabulary->n_words());
  ASSERT_TRUE(state.accept(8 + '"'));
  for (size_t left = 7;; --left) {
    state.mask(words);
    for (int32_t id = 0; id < vocabulary->size(); ++id)
      ASSERT_EQ(has(words, id), state.allows(id)) << left << " " << id;
    if (left == 0) break;
    ASSERT_TRUE(state.accept(8 + 'a'));
  }
  EXPECT_FALSE(has(words, 8 + 'a'));
  EXPECT_TRUE(has(words, 8 + '"'));
}

TEST(GrammarMask, BundledModelsVocabulariesMatchThePlainMatcher) {
  for (const char* file : {"/models/gemma4-mini-q8_0.gguf", "/models/deepseek4-mini-q8_0.gguf"}) {
    const Checkpoint checkpoint = Checkpoint::open(std::string(SYNOD_SOURCE_DIR) + file);
    const Tokenizer tokenizer = load_tokenizer(checkpoint);
    const auto stops = stop_ids(checkpoint, tokenizer, *find_architecture(checkpoint).dialogue());
    const auto vocabulary = Vocabulary::from_tokenizer(tokenizer, stops);
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      if (tokenizer.kind(id) == TokenKind::kControl) {
        ASSERT_FALSE(vocabulary->is_text(id)) << tokenizer.bytes_of(id);
      }
    }
    // The model's own spelling of a valid text goes through.
    const std::string text =
        R"({"name": "Zo\u00eb 😀", "role": "editor", "age": 41, "notes": ["a \"b\"", ""], "address": {"street": "Müller-Straße 1", "zip": "01234"}})";
    GrammarBuilder b;
    const Term root = b.json_schema(kPersonSchema);
    const auto grammar = b.build(root, vocabulary);
    GrammarState state(grammar);
    ReferenceMatcher reference(b.tree(), root);
    std::vector<uint32_t> words(vocabulary->n_words());
    int n_compared = 0;
    for (const int32_t id : tokenizer.encode(text)) {
      state.mask(words);
      ASSERT_TRUE(has(words, id)) << file << " '" << tokenizer.bytes_of(id) << "'";
      if (n_compared++ % 6 == 0) {
        for (int32_t other = 0; other < vocabulary->size(); ++other) {
          ReferenceMatcher copy = reference;
          const bool expected =
              copy.accept(other, *vocabulary) || (vocabulary->is_stop(other) && reference.complete());
          ASSERT_EQ(has(words, other), expected) << file << " '" << tokenizer.bytes_of(other) << "'";
        }
      }
      ASSERT_TRUE(state.accept(id));
      ASSERT_TRUE(reference.accept(id, *vocabulary));
    }
    EXPECT_TRUE(state.is_complete());
    state.mask(words);
    for (int32_t id = 0; id < vocabulary->size(); ++id) ASSERT_EQ(has(words, id), vocabulary->is_stop(id));
    std::printf("%s: %d tokens, %d masks in full\n", file, vocabulary->size(), (n_compared + 5) / 6);
  }
}

}  // namespace
}  // namespace synod::grammar_testing
