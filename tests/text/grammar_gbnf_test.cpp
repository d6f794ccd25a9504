#include "text/grammar_testing.h"

namespace synod::grammar_testing {
namespace {

using text_testing::RandomText;

std::shared_ptr<const Grammar> gbnf(std::string_view text) {
  return Grammar::from_gbnf(text, small_vocabulary({}));
}

void expect_language(std::string_view grammar, const std::vector<std::string>& in,
                     const std::vector<std::string>& out) {
  const auto compiled = gbnf(grammar);
  for (const std::string& text : in)
    EXPECT_EQ(verdict(compiled, text), Verdict::kMatch) << grammar << "\n" << text;
  for (const std::string& text : out)
    EXPECT_NE(verdict(compiled, text), Verdict::kMatch) << grammar << "\n" << text;
}

TEST(Gbnf, ReadsEveryConstruct) {
  expect_language("root ::= \"a\" \"b\"", {"ab"}, {"", "a", "abb"});
  expect_language("root ::= \"a\" | \"b\" | ", {"", "a", "b"}, {"ab", "c"});
  expect_language("root ::= (\"a\"\n | \"b\" # comment )\n )* \"c\"", {"c", "ababc"}, {"ab", "cc"});
  expect_language("root ::= \"ab\"{2}", {"abab"}, {"ab", "ababab"});
  expect_language("root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"a"});
  expect_language("root ::= \"a\"{ 1 , 3 }", {"a", "aaa"}, {"", "aaaa"});
  expect_language("root ::= \"a\"? [b-d]+ [^b-d]", {"abx", "bcd\n"}, {"a", "abb"});
  expect_language("root ::= [a\\-c\\]]+ [-x] [x-]", {"a-x", "c]-x", "-xx"}, {"xx-", "b-x"});
  expect_language("root ::= . [\\x41-\\u0043] \"\\U0001F600\"",
                  {"\xC3\xA9"
                   "A\xF0\x9F\x98\x80"},
                  {"eD\xF0\x9F\x98\x80"});
  expect_language("root ::= \"\\t\\r\\n\\\\\\\"\\[\\]\"", {"\t\r\n\\\"[]"}, {"t"});
  expect_language("# first\nother-rule_1 ::= [0-9]\n\nroot ::= other-rule_1 |\n  \"x\" other-rule_1\n",
                  {"1", "x2"}, {"x"});
  expect_language("root ::= \"a\"\n  | \"b\"\r\nunused ::= \"c\"", {"a", "b"}, {"c"});
  expect_language("root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"((x)"});
  expect_language("root ::= \"\" \"a\"*?", {"", "aa"}, {"b"});
}

TEST(Gbnf, RulesMayBeEmptyWhereNothingFollows) {
  expect_language("root ::=", {""}, {"a", " "});
  expect_language("root ::= \"\"", {""}, {"a"});
  expect_language("root ::= | \"a\"", {"", "a"}, {"aa"});
  expect_language("root ::= \"a\" b \"c\"\nb ::= # nothing", {"ac"}, {"abc", "a"});
  expect_language("root ::= (b \"a\")*\nb ::= \"\"\nc ::= b b", {"", "aa"}, {"b"});
  const auto nothing = gbnf("root ::=");
  GrammarState state(nothing);
  std::vector<uint32_t> words(nothing->vocabulary().n_words());
  EXPECT_TRUE(state.mask(words)) << "the text may end";
  EXPECT_TRUE(state.is_complete());
}

TEST(Gbnf, MatchesCharactersNotBytes) {
  const auto grammar = gbnf("root ::= [^a]{2} [\xD0\x90-\xD0\xAF]");  // А-Я
  EXPECT_EQ(verdict(grammar, "\xF0\x9F\x98\x80\xC3\xA9\xD0\x96"), Verdict::kMatch);
  EXPECT_EQ(verdict(grammar,
                    "\xC3\xA9"
                    "b\xD0\xB0"),
            Verdict::kRefused);
  EXPECT_EQ(verdict(grammar, "\xF0\x9F\x98"), Verdict::kPrefix);
  EXPECT_EQ(verdict(grammar, "\xED\xA0\x80"), Verdict::kRefused) << "a surrogate";
  EXPECT_EQ(verdict(grammar, "\xC0\x80"), Verdict::kRefused) << "an overlong form";
  EXPECT_EQ(verdict(grammar, "\xF4\x90"), Verdict::kRefused) << "past U+10FFFF";
}

TEST(Gbnf, NamesLineAndColumn) {
  const auto message = [](std::string_view text) { return usage_message([&] { gbnf(text); }); };
  const auto expect = [&](std::string_view text, std::string_view part) {
    EXPECT_NE(message(text).find(part), std::string::npos) << text << "\n" << message(text);
  };
  expect("root ::= \"a\"\nfoo = \"b\"", "line 2, column 5: expected '::='");
  expect("root ::= \"a", "line 1, column 10: this '\"' is never closed");
  expect("root ::= [a", "line 1, column 10: this '[' is never closed");
  expect("root ::= (\"a\"\n", "expected ')'");
  expect("root ::= missing", "line 1, column 10: rule 'missing' is used but not defined");
  expect("root ::= \xC3\xA9", "line 1, column 10: expected a newline");
  expect("root ::= \"\\q\"", "line 1, column 11: unknown escape");
  expect("root ::= \"\\ud800\"", "not a character");
  expect("root ::= * \"a\"", "nothing before it to repeat");
  expect("root ::= \"a\"{3,2}", "second bound is smaller");
  expect("root ::= \"a\"{1,1000000}", "at most 100000");
  expect("root ::= \"a\"{x}", "expected a number");
  expect("root ::= [z-a]", "the range ends before it begins");
  expect("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is defined twice");
  expect("start ::= \"a\"", "expected a rule named 'root'");
  expect("", "expected a rule named 'root'");
  expect("root ::= b\nb ::=\nc ::= \"x\"", "line 2, column 1: rule 'b' has no body");
  expect("root ::= <nothing>", "no single token '<nothing>'");
  expect("root ::= <[9999]>", "token id 9999");
}

TEST(Gbnf, RefusesLeftRecursionHoweverHidden) {
  for (const char* text : {"root ::= root \"a\" | \"a\"", "root ::= a\na ::= b \"x\" | \"y\"\nb ::= a",
                           "root ::= \"x\"? root \"a\" | \"b\"", "root ::= (\"a\"* | \"\") root | \"c\"",
                           "root ::= e root | \"c\"\ne ::= \"x\" | "}) {
    EXPECT_NE(usage_message([&] { gbnf(text); }).find("left-recursive"), std::string::npos) << text;
  }
  EXPECT_NE(usage_message([] { gbnf("root ::= a\na ::= a \"x\" | \"y\""); }).find("line 2"),
            std::string::npos);
}

TEST(Gbnf, RefusesWhatNeverEnds) {
  EXPECT_NE(usage_message([] { gbnf("root ::= \"a\" root"); }).find("nothing matches"), std::string::npos);
  expect_language("root ::= \"a\" endless | \"b\"\nendless ::= \"x\" endless", {"b"}, {"a"});
  EXPECT_EQ(verdict(gbnf("root ::= \"a\" endless | \"b\"\nendless ::= \"x\" endless"), "a"),
            Verdict::kRefused);
}

TEST(Gbnf, BombsFailFast) {
  std::string nested = "root ::= ";
  for (int i = 0; i < 100'000; ++i) nested += '(';
  std::string powers = "root ::= a0\n";
  for (int i = 0; i < 30; ++i) powers += fmt::format("a{} ::= a{} a{}\n", i, i + 1, i + 1);
  powers += "a30 ::= \"x\"{100}";
  std::string chain = "root ::= c0\n";
  for (int i = 0; i < 20'000; ++i) chain += fmt::format("c{} ::= c{}\n", i, i + 1);
  chain += "c20000 ::= \"x\"";
  const double taken = text_testing::seconds([&] {
    EXPECT_NE(usage_message([&] { gbnf(nested); }).find("nested deeper"), std::string::npos);
    // Long repetitions are counted in blocks.
    EXPECT_LT(
        gbnf("root ::= (([a-c] \"x\"){100000} \"d\"){100000} | [a-z]{100000} [b-y]{100000}")->n_states(),
        50'000u);
    usage_message([] { gbnf(std::string(size_t(2) << 20, 'a')); });
    gbnf(powers);  // small: rules are shared
    GrammarState state(gbnf(chain));
    EXPECT_TRUE(state.accept(kFirstByte + 'x'));
  });
  if (text_testing::kTimingCounts) {
    EXPECT_LT(taken, 5.0);
  }
}

TEST(Gbnf, TokensByIdStandForThemselves) {
  auto vocabulary = small_vocabulary({"abc"});
  const auto grammar = Grammar::from_gbnf("root ::= <[1]> \"ab\" <[2]>* !<[100]>", vocabulary);
  GrammarState state(grammar);
  EXPECT_FALSE(state.allows(kControlB));
  ASSERT_TRUE(state.accept(kControlA));
  ASSERT_TRUE(state.accept(kFirstByte + 'a'));
  ASSERT_TRUE(state.accept(kFirstByte + 'b'));
  GrammarState other = state;
  ASSERT_TRUE(state.accept(kControlB));
  ASSERT_TRUE(state.accept(kControlB));
  EXPECT_FALSE(state.accept(100));
  EXPECT_FALSE(state.accept(kControlA)) << "negation stands for text tokens";
  ASSERT_TRUE(state.accept(101));
  EXPECT_TRUE(state.is_complete());
  ASSERT_TRUE(other.accept(102));
  EXPECT_TRUE(other.is_complete());
}

// Random grammars over a few characters whose encodings share bytes.
class RandomGrammar {
 public:
  explicit RandomGrammar(RandomText& random) : random_(random) {}

  std::string text() {
    n_rules_ = 1 + random_.below(4);
    std::string out;
    for (size_t r = 0; r < n_rules_; ++r) out += name(r) + " ::= " + alternatives(2) + "\n";
    return out;
  }

 private:
  std::string name(size_t rule) const { return rule == 0 ? "root" : fmt::format("r{}", rule); }
  std::string letter() {
    static const std::vector<std::string> kLetters{
        "a", "b", "c", "\xC3\xA9", "\xC3\xA8", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    return kLetters[random_.below(kLetters.size())];
  }
  std::string alternatives(int depth) {
    std::string out = sequence(depth);
    for (size_t n = random_.below(3); n > 0; --n) out += " | " + sequence(depth);
    return out;
  }
  std::string sequence(int depth) {
    std::string out;
    for (size_t n = random_.below(4); n > 0; --n) out += item(depth) + " ";
    return out;
  }
  std::string item(int depth) {
    std::string out;
    switch (random_.below(depth > 0 ? 7 : 4)) {
      case 0:
        out = "\"" + letter() + letter() + "\"";
        break;
      case 1:
        out = "[" + std::string(random_.below(3) == 0 ? "^" : "") + letter() + letter() + "]";
        break;
      case 2:
        out = "[a-c\xC3\xA8-\xE2\x82\xAC]";
        break;
      case 3:
        out = "\"" + letter() + "\"";
        break;
      case 4:
        out = "(" + alternatives(depth - 1) + ")";
        break;
      default:
        out = name(random_.below(n_rules_));
    }
    switch (random_.below(8)) {
      case 0:
        return out + "*";
      case 1:
        return out + "+";
      case 2:
        return out + "?";
      case 3:
        return out + fmt::format("{{{},{}}}", random_.below(3), 2 + random_.below(12));
      default:
        return out;
    }
  }

  RandomText& random_;
  size_t n_rules_ = 0;
};

TEST(Gbnf, RandomGrammarsHaveExactlyThePlainMatchersMasks) {
  RandomText random(7);
  const std::vector<std::string> alphabet{
      "a", "b", "c", "\xC3\xA9", "\xC3\xA8", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xC3", "\x98"};
  int n_compared = 0, n_refused = 0;
  size_t n_bytes = 0;
  while (n_compared < 80) {
    const std::string text = RandomGrammar(random).text();
    const auto vocabulary = random_vocabulary(random, alphabet, 60);
    GrammarBuilder builder;
    std::shared_ptr<const Grammar> grammar;
    Term root;
    try {
      root = builder.gbnf(text);
      grammar = builder.build(root, vocabulary);
    } catch (const Error&) {
      ++n_refused;  // left-recursive or endless
      continue;
    }
    ++n_compared;
    n_bytes += compare_walk(grammar, builder.tree(), root, random, 8, n_compared % 4 == 0).size();
    ASSERT_FALSE(HasFailure()) << text;
  }
  std::printf("%d grammars compared, %d refused, %zu bytes walked\n", n_compared, n_refused, n_bytes);
  EXPECT_GT(n_bytes, 300u);
}

}  // namespace
}  // namespace synod::grammar_testing
