// Composition: tool calls in both families' shapes, lazy enforcement, and copies as bookmarks.
#include "text/grammar_testing.h"

namespace synod::grammar_testing {
namespace {

using text_testing::RandomText;

bool feed(GrammarState& state, std::string_view text) {
  for (const char c : text) {
    if (!state.accept(kFirstByte + uint8_t(c))) return false;
  }
  return true;
}

TEST(GrammarBuilder, ToolCallsBetweenControlTokens) {
  GrammarBuilder b;
  const auto call = [&](std::string_view name, std::string_view arguments) {
    return b.sequence({b.token(kControlA), b.text("call:" + std::string(name)), b.json_schema(arguments),
                       b.token(kControlB)});
  };
  const Term tools =
      b.choice({call("get_weather",
                     R"({"type":"object","properties":{"city":{"type":"string"}},"required":["city"]})"),
                call("get_time", R"({"type":"object","properties":{}})")});
  GrammarState state(b.build(b.repeat(tools, 1, 2), small_vocabulary({})));
  EXPECT_FALSE(state.accept(kFirstByte + 'c')) << "required: nothing but a call";
  ASSERT_TRUE(state.accept(kControlA));
  EXPECT_EQ(state.forced_text(), "call:get_");
  ASSERT_TRUE(feed(state, "call:get_weather{\"city\": \"Rome\"}"));
  EXPECT_FALSE(state.is_complete());
  EXPECT_FALSE(state.allows(kStop));
  ASSERT_TRUE(state.accept(kControlB));
  EXPECT_TRUE(state.is_complete());
  ASSERT_TRUE(state.accept(kControlA));
  ASSERT_TRUE(feed(state, "call:get_time{}"));
  ASSERT_TRUE(state.accept(kControlB));
  EXPECT_FALSE(state.allows(kControlA)) << "two calls at most";
  ASSERT_TRUE(state.accept(kStop));
  EXPECT_TRUE(state.is_finished());
  EXPECT_FALSE(state.allows(kStop));
  std::vector<uint32_t> words(state.grammar().vocabulary().n_words());
  EXPECT_FALSE(state.mask(words));
}

// <mark>name="P">raw text</mark>: the value ends at the closing mark, whatever is in it.
TEST(GrammarBuilder, RawValuesEndAtTheirMark) {
  GrammarBuilder b;
  const Term value = b.sequence({b.text("<p name=\"q\">"), b.until("</p>"), b.text("\n")});
  const auto grammar = b.build(b.repeat(value, 1), small_vocabulary({}));
  EXPECT_EQ(verdict(grammar, "<p name=\"q\">a </ p> <</p </p>\n"), Verdict::kMatch);
  EXPECT_EQ(verdict(grammar, "<p name=\"q\"></p>\n<p name=\"q\">x</p>\n"), Verdict::kMatch);
  EXPECT_EQ(verdict(grammar, "<p name=\"q\">a</p>b"), Verdict::kRefused);
}

TEST(GrammarBuilder, LazyTokensEnforceOnlyAfterTheTrigger) {
  GrammarBuilder b;
  const Term body = b.sequence({b.text("call:f"), b.json_object(), b.token(kControlB)});
  GrammarState state(b.build(b.lazy({.tokens = {kControlA}, .texts = {}}, body), small_vocabulary({})));
  EXPECT_TRUE(state.allows(kStop));
  ASSERT_TRUE(feed(state, "anything {\xFF\x80"));
  EXPECT_TRUE(state.allows(kControlB)) << "other control tokens are free";
  EXPECT_TRUE(state.allows(kStop));
  ASSERT_TRUE(state.accept(kControlA));
  EXPECT_FALSE(state.allows(kStop));
  EXPECT_FALSE(state.allows(kFirstByte + 'x'));
  ASSERT_TRUE(feed(state, "call:f{\"a\":1}"));
  EXPECT_FALSE(state.allows(kFirstByte + ' '));
  ASSERT_TRUE(state.accept(kControlB));
  ASSERT_TRUE(feed(state, " and more"));
  ASSERT_TRUE(state.accept(kControlA));
  EXPECT_FALSE(state.allows(kFirstByte + 'x')) << "again and again";
}

TEST(GrammarBuilder, LazyTextsAreFoundAcrossTokens) {
  GrammarBuilder b;
  const auto vocabulary = small_vocabulary({"a<to", "ol>", "ol>{", "ol>x", "<tool>{}", "<tool>1", "<<"});
  const int32_t first = kFirstByte + 256;
  const auto grammar =
      b.build(b.lazy({.tokens = {}, .texts = {"<tool>", "[["}}, b.json_object(), 1, 2), vocabulary);
  GrammarState state(grammar);
  EXPECT_FALSE(state.allows(kStop)) << "one call is required";
  EXPECT_TRUE(state.allows(first + 4));
  EXPECT_FALSE(state.allows(first + 5)) << "what follows the trigger in the token counts";
  ASSERT_TRUE(state.accept(first + 6));
  ASSERT_TRUE(state.accept(first + 0));
  EXPECT_FALSE(state.allows(first + 3));
  ASSERT_TRUE(state.accept(first + 2));
  EXPECT_FALSE(state.allows(kStop));
  ASSERT_TRUE(feed(state, "}"));
  EXPECT_TRUE(state.allows(kStop));
  ASSERT_TRUE(feed(state, " then [[{}"));
  ASSERT_TRUE(feed(state, " <tool"));
  EXPECT_FALSE(state.allows(kFirstByte + '>')) << "two calls at most";
  EXPECT_TRUE(state.allows(kStop));
}

TEST(GrammarBuilder, LazyMasksMatchThePlainMatcher) {
  RandomText random(3);
  const std::vector<std::string> alphabet{"<", "t",  ">", "<t", "t>",       "{",
                                          "}", "\"", "a", " ",  "\xC3\xA9", ":"};
  for (int round = 0; round < 4; ++round) {
    GrammarBuilder b;
    const auto vocabulary = random_vocabulary(random, alphabet, 60);
    const Term body = b.sequence({b.json_object(), b.optional(b.token(kControlB))});
    const Term root = b.lazy({.tokens = {kControlA}, .texts = {"<t>"}}, body, round % 2, round < 2 ? -1 : 2);
    compare_walk(b.build(root, vocabulary), b.tree(), root, random, 12, round == 0);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(GrammarBuilder, CopiesAreBookmarks) {
  const auto grammar = Grammar::json_object(small_vocabulary({}));
  GrammarState state(grammar);
  ASSERT_TRUE(feed(state, "{\"a\":[1,"));
  const GrammarState bookmark = state;
  const auto before = allowed_ids(state, grammar->vocabulary());
  ASSERT_TRUE(feed(state, "2]}"));
  EXPECT_TRUE(state.is_complete());
  state = bookmark;
  EXPECT_FALSE(state.is_complete());
  EXPECT_EQ(allowed_ids(state, grammar->vocabulary()), before);
  EXPECT_FALSE(state.accept(kFirstByte + '}'));
  EXPECT_EQ(allowed_ids(state, grammar->vocabulary()), before) << "a refused token changes nothing";
}

TEST(GrammarBuilder, NestingIsBoundedAndMasksSayTheSame) {
  const auto vocabulary = small_vocabulary({"[[", "[[[[[[[[", "]]", "{\"a\":["});
  GrammarBuilder b;
  GrammarState state(b.build(b.json_value(), vocabulary));
  const int32_t eight = kFirstByte + 256 + 1;
  int n = 0;
  while (state.allows(eight) && n < 10'000) {
    ASSERT_TRUE(state.accept(eight));
    ++n;
  }
  EXPECT_GT(n, 50);
  EXPECT_LT(n, 1000);
  for (int step = 0; step < 12; ++step) {
    std::vector<uint32_t> words(vocabulary->n_words());
    ASSERT_TRUE(state.mask(words));
    for (int32_t id = 0; id < vocabulary->size(); ++id)
      ASSERT_EQ(has(words, id), state.allows(id)) << step << " " << id;
    if (!state.accept(kFirstByte + '[')) break;
  }
  EXPECT_FALSE(state.allows(kFirstByte + '['));
  EXPECT_TRUE(state.allows(kFirstByte + '1'));
}

TEST(GrammarBuilder, AmbiguityStaysPolynomial) {
  // 2^n ways through n characters for a matcher that keeps stacks apart.
  const auto grammar = Grammar::from_gbnf(
      "root ::= a | b\na ::= \"x\" a \"y\" | \"x\" b \"z\" | \"m\"\nb ::= \"x\" a \"y\" | \"x\" b \"w\" | "
      "\"m\"\n",
      small_vocabulary({}));
  GrammarState state(grammar);
  const double taken = text_testing::seconds([&] {
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(state.accept(kFirstByte + 'x'));
    ASSERT_TRUE(state.accept(kFirstByte + 'm'));
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(state.accept(kFirstByte + (i % 2 ? 'y' : 'z')));
  });
  EXPECT_TRUE(state.is_complete());
  if (text_testing::kTimingCounts) {
    EXPECT_LT(taken, 5.0);
  }
}

TEST(GrammarBuilder, RepetitionsCountExactly) {
  for (const auto& [min, max] :
       {std::pair<int64_t, int64_t>{0, 5000}, {3, 4097 + 1024}, {5000, 10'240}, {4097, 4097}, {6000, -1}}) {
    GrammarBuilder b;
    const auto grammar =
        b.build(b.repeat(b.characters({{'a', 'b'}, {0xE9, 0xE9}}), min, max), small_vocabulary({}));
    EXPECT_LT(grammar->n_states(), 13'000u);
    GrammarState state(grammar);
    for (int64_t n = 0; n <= (max < 0 ? min + 2000 : max); ++n) {
      ASSERT_EQ(state.is_complete(), n >= min) << min << " " << max << " " << n;
      ASSERT_EQ(state.accept(kFirstByte + 'a'), max < 0 || n < max) << n;
    }
  }
}

TEST(GrammarBuilder, ErrorsSayWhat) {
  const auto vocabulary = small_vocabulary({});
  const auto expect = [](const auto& work, std::string_view part) {
    const std::string message = usage_message(work);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(
      [&] {
        GrammarBuilder b;
        b.build(b.token(999), vocabulary);
      },
      "token id 999: expected 0 to 258");
  expect(
      [&] {
        GrammarBuilder b;
        b.build(b.never(), vocabulary);
      },
      "nothing matches");
  expect(
      [&] {
        GrammarBuilder b;
        b.build(b.declare("loose"), vocabulary);
      },
      "'loose' is used but not defined");
  expect(
      [&] {
        GrammarBuilder b;
        b.lazy({}, b.empty());
      },
      "at least one trigger");
  expect(
      [&] {
        GrammarBuilder b;
        b.build(b.lazy({.tokens = {kFirstByte}, .texts = {}}, b.text("x")), vocabulary);
      },
      "carries text");
  expect(
      [&] {
        GrammarBuilder b;
        b.repeat(b.text("x"), 3, 2);
      },
      "repetition from 3 to 2");
}

}  // namespace
}  // namespace synod::grammar_testing
