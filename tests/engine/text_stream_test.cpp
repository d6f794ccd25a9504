// Text is the same however tokens cut it, stop strings included.
#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include "engine/drafter.h"
#include "engine/engine_testing.h"

namespace synod::testing {
namespace {

// The ids of the bytes of `text`, one token per byte: every cut at once.
std::vector<int32_t> byte_ids(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) {
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.kind(id) != TokenKind::kControl && tokenizer.bytes_of(id) == std::string(1, c)) {
        ids.push_back(id);
        break;
      }
    }
  }
  return ids;
}

struct Outcome {
  std::string text;
  std::optional<size_t> stop;
  size_t n_tokens = 0;  // until the stop
};

Outcome run(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, std::vector<std::string> stops) {
  TextStream stream(tokenizer, false, std::move(stops));
  Outcome outcome;
  for (const int32_t id : ids) {
    outcome.text += stream.push(id, true);
    ++outcome.n_tokens;
    if (stream.stopped()) break;
  }
  outcome.text += stream.finish();
  outcome.stop = stream.stopped();
  return outcome;
}

TEST(TextStream, FindsStopStringsAcrossTokenBorders) {
  const Tokenizer& t = loaded("deepseek4").tokenizer;
  const std::string text = "one two three, caf\xC3\xA9 and more";
  for (const auto& ids : {t.encode(text), byte_ids(t, text)}) {
    EXPECT_EQ(run(t, ids, {}).text, text);
    EXPECT_EQ(run(t, ids, {"absent", "two thx"}).text, text) << "held back, then released";
    EXPECT_EQ(run(t, ids, {"o thr"}).text, "one tw");
    EXPECT_EQ(run(t, ids, {"\xC3\xA9"}).text, "one two three, caf");
    EXPECT_EQ(run(t, ids, {"one"}).text, "");
    EXPECT_EQ(run(t, ids, {"more"}).text, "one two three, caf\xC3\xA9 and ");
    EXPECT_EQ(run(t, ids, {"three", "two"}).stop, std::optional<size_t>(1)) << "the first in the text";
    EXPECT_EQ(run(t, ids, {"wo t", "two t"}).stop, std::optional<size_t>(1)) << "the longest of one end";
  }
  EXPECT_EQ(run(t, byte_ids(t, text), {"two"}).n_tokens, 7U) << "known with the token that completes it";
}

TEST(TextStream, NeverGivesPartOfACharacterAndRepairsWhatIsCut) {
  const Tokenizer& t = loaded("deepseek4").tokenizer;
  TextStream stream(t, false, {"zz"});
  std::string text;
  for (const int32_t id : byte_ids(t,
                                   "a\xE2\x82\xAC"
                                   "b\xE2\x82")) {
    const std::string part = stream.push(id, true);
    EXPECT_TRUE(part.empty() || (static_cast<unsigned char>(part[0]) & 0xC0U) != 0x80U);
    text += part;
  }
  EXPECT_EQ(text,
            "a\xE2\x82\xAC"
            "b");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(NgramDrafter, ProposesWhatFollowedTheLastTime) {
  NgramDrafter drafter;
  std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 9, 1, 2, 3};
  drafter.extend(ids);
  EXPECT_EQ(drafter.draft(ids, 3), (std::vector<int32_t>{4, 5, 6}));
  ids.insert(ids.end(), {7, 8, 1, 2, 3});
  drafter.extend(ids);
  EXPECT_EQ(drafter.draft(ids, 2), (std::vector<int32_t>{7, 8})) << "the latest occurrence";
  EXPECT_EQ(drafter.draft(ids, 99).size(), 5U) << "no further than what is known";
  ids.push_back(77);
  drafter.extend(ids);
  EXPECT_TRUE(drafter.draft(ids, 3).empty());
  EXPECT_TRUE(NgramDrafter().draft(std::vector<int32_t>{1, 2}, 3).empty());
}

}  // namespace
}  // namespace synod::testing
