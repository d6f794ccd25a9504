// The fast merge loop against the textbook one, and the DeepSeek splits on the cases their patterns turn on.
#include "text/bpe.h"

#include <map>

#include "text/byte_alphabet.h"
#include "text/deepseek_split.h"
#include "text_testing.h"

namespace synod {
namespace {

using namespace text_testing;
using Ids = std::vector<int32_t>;

// Straight from the definition, on strings: quadratic, and shares nothing with the code it checks.
class TextbookBpe {
 public:
  explicit TextbookBpe(const TokenizerData& data) {
    for (size_t id = data.pieces.size(); id-- > 0;) ids_[data.pieces[id]] = int32_t(id);
    for (size_t rank = 0; rank < data.merges.size(); ++rank) ranks_[data.merges[rank]] = rank;
  }

  std::vector<std::string> merge(std::vector<std::string> parts) const {
    for (;;) {
      size_t best_rank = SIZE_MAX, best = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks_.find({parts[i], parts[i + 1]});
        if (found != ranks_.end() && found->second < best_rank) best_rank = found->second, best = i;
      }
      if (best_rank == SIZE_MAX) return parts;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + std::ptrdiff_t(best) + 1);
    }
  }

  bool knows(const std::string& piece) const { return ids_.count(piece) != 0; }
  int32_t id(const std::string& piece) const { return ids_.at(piece); }

 private:
  std::map<std::string, int32_t> ids_;
  std::map<std::pair<std::string, std::string>, size_t> ranks_;
};

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t length = decode_utf8(text, pos).length;
    parts.push_back(text.substr(pos, length));
    pos += length;
  }
  return parts;
}

Ids textbook_gemma(const TextbookBpe& bpe, const std::string& text) {
  std::vector<std::string> parts = characters(text);
  for (std::string& part : parts) {
    if (part == " ") part = "\u2581";
  }
  Ids ids;
  for (const std::string& part : bpe.merge(parts)) {
    if (bpe.knows(part)) {
      ids.push_back(bpe.id(part));
      continue;
    }
    for (const char byte : part) ids.push_back(bpe.id(fmt::format("<0x{:02X}>", uint8_t(byte))));
  }
  return ids;
}

Ids textbook_deepseek(const TextbookBpe& bpe, const std::string& text) {
  Ids ids;
  for (const std::string_view piece : split_deepseek(text)) {
    std::vector<std::string> parts;
    for (const char byte : piece) {
      parts.emplace_back();
      append_utf8(parts.back(), byte_to_character(uint8_t(byte)));
    }
    for (const std::string& part : bpe.merge(parts)) ids.push_back(bpe.id(part));
  }
  return ids;
}

std::string random_words(RandomText& random) {
  static const std::vector<std::string> alphabet = {"a",  "b", "e", "h",      "i",      "n",      "o",
                                                    "r",  "s", "t", "t",      "h",      "e",      " ",
                                                    "\n", ".", "1", "\u00E9", "\u4F60", "\u2581", "T"};
  static const std::vector<std::string> few = {"a", "b", " "};
  return random.from(random.below(3) == 0 ? few : alphabet, random.below(120));
}

TEST(Bpe, FastMergesEqualTheTextbookOnesForGemma) {
  const TextbookBpe bpe(gemma4_mini().data());
  RandomText random(5);
  for (int round = 0; round < 400; ++round) {
    const std::string text = round % 5 == 0 ? random.unicode(random.below(60)) : random_words(random);
    EXPECT_EQ(gemma4_mini().encode(text), textbook_gemma(bpe, text)) << text;
  }
}

TEST(Bpe, FastMergesEqualTheTextbookOnesForDeepseek) {
  const TextbookBpe bpe(deepseek4_mini().data());
  RandomText random(6);
  for (int round = 0; round < 400; ++round) {
    const std::string text = round % 5 == 0 ? random.unicode(random.below(60)) : random_words(random);
    EXPECT_EQ(deepseek4_mini().encode(text), textbook_deepseek(bpe, text)) << text;
  }
}

TEST(Bpe, FastMergesEqualTheTextbookOnesForRandomMergeTables) {
  RandomText random(7);
  for (int round = 0; round < 200; ++round) {
    TokenizerData data;
    data.pieces = {"a", "b", "c"};
    for (int i = 0; i < 12; ++i) {
      const std::string left = data.pieces[random.below(data.pieces.size())];
      const std::string right = data.pieces[random.below(data.pieces.size())];
      data.pieces.push_back(left + right);
      data.merges.push_back({left, right});
    }
    data.kinds.assign(data.pieces.size(), TokenKind::kNormal);
    const TextbookBpe bpe(data);
    const Tokenizer tokenizer(data, "random");
    for (int i = 0; i < 20; ++i) {
      const std::string text = random.from({"a", "b", "c"}, random.below(60));
      Ids expected;
      for (const std::string& part : bpe.merge(characters(text))) expected.push_back(bpe.id(part));
      EXPECT_EQ(tokenizer.encode(text), expected) << text;
    }
  }
}

// -----------------------------------------------------------------------------------------------------------
// splits

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> pieces;
  for (const std::string_view piece : split_deepseek(text)) pieces.emplace_back(piece);
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(DeepseekSplit, CutsNumbersInThreesOfAnyScript) {
  EXPECT_EQ(split("12345678"), (Pieces{"123", "456", "78"}));
  EXPECT_EQ(split("a1b"), (Pieces{"a", "1", "b"}));
  EXPECT_EQ(split("\u0661\u0662\u0663\u0664"), (Pieces{"\u0661\u0662\u0663", "\u0664"}));
  EXPECT_EQ(split("\u2167\u00BD"), (Pieces{"\u2167\u00BD"}));
}

TEST(DeepseekSplit, KeepsBlanksBeforeADigitTogether) {
  EXPECT_EQ(split("a   1"), (Pieces{"a", "   ", "1"}));
  EXPECT_EQ(split("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(split("a   \u4F60"), (Pieces{"a", "   ", "\u4F60"}));
}

TEST(DeepseekSplit, CutsIdeographsAndKanaBeforeWords) {
  EXPECT_EQ(split("x\u4F60\u597Dy"), (Pieces{"x", "\u4F60\u597D", "y"}));
  // The kana middle dot and U+30A0 are punctuation, U+309B is a symbol, U+3099 a mark, U+3040 unassigned.
  EXPECT_EQ(split("\u30A2\u30FB\u30A2"), (Pieces{"\u30A2", "\u30FB", "\u30A2"}));
  EXPECT_EQ(split("\u304B\u3099\u309B\u304B"), (Pieces{"\u304B\u3099", "\u309B", "\u304B"}));
  EXPECT_EQ(split("\u304B\u3040\u304B"), (Pieces{"\u304B", "\u3040\u304B"}));
  EXPECT_EQ(split("\u304B\u3040"), (Pieces{"\u304B", "\u3040"}));
  // U+9FA6 and U+3005 are letters outside the ranges.
  EXPECT_EQ(split("\u4F60\u9FA6"), (Pieces{"\u4F60", "\u9FA6"}));
  EXPECT_EQ(split("\u4F60\u3005a"), (Pieces{"\u4F60", "\u3005a"}));
}

TEST(DeepseekSplit, TriesTheAlternativesInOrder) {
  EXPECT_EQ(split("'tis"), (Pieces{"'tis"}));
  EXPECT_EQ(split("''tis"), (Pieces{"''", "tis"}));
  EXPECT_EQ(split("_caf\u00E9"), (Pieces{"_caf", "\u00E9"}));  // only ASCII letters follow the sign
  EXPECT_EQ(split("\u2019tis"), (Pieces{"\u2019", "tis"}));
  EXPECT_EQ(split(" word"), (Pieces{" word"}));
  EXPECT_EQ(split("\tword"), (Pieces{"\tword"}));
  EXPECT_EQ(split("\x01word"), (Pieces{"\x01word"}));
  EXPECT_EQ(split("\nword"), (Pieces{"\n", "word"}));
  EXPECT_EQ(split("\u0301\u0301"), (Pieces{"\u0301\u0301"}));
  EXPECT_EQ(split("\u0301"), (Pieces{"\u0301"}));
  EXPECT_EQ(split(" ...\r\nx"), (Pieces{" ...\r\n", "x"}));
  EXPECT_EQ(split("  ..."), (Pieces{" ", " ..."}));
  EXPECT_EQ(split("\t..."), (Pieces{"\t", "..."}));
  EXPECT_EQ(split(" +x"), (Pieces{" +", "x"}));
}

TEST(DeepseekSplit, EndsBlankRunsAtTheirLastLineBreak) {
  EXPECT_EQ(split(" \n \n  x"), (Pieces{" \n \n", " ", " x"}));
  EXPECT_EQ(split("a \n\t"), (Pieces{"a", " \n", "\t"}));
  EXPECT_EQ(split("a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(split("a\u00A0\u3000b"), (Pieces{"a", "\u00A0", "\u3000b"}));
  EXPECT_EQ(split("\u2028\n"), (Pieces{"\u2028\n"}));
  EXPECT_EQ(split("\u0085\u0085!"), (Pieces{"\u0085", "\u0085", "!"}));
}

TEST(DeepseekSplit, LeavesWhatNoAlternativeTakesInOnePiece) {
  EXPECT_EQ(split("!\x01\x02!"), (Pieces{"!", "\x01\x02", "!"}));
  EXPECT_EQ(split("\u200B\uFEFF"), (Pieces{"\u200B\uFEFF"}));
  EXPECT_EQ(split("\x1C\x1Dq"), (Pieces{"\x1C", "\x1Dq"}));
  EXPECT_EQ(split("\xFF\xFEq"), (Pieces{"\xFF", "\xFEq"}));
  EXPECT_TRUE(split("").empty());
}

TEST(DeepseekSplit, PiecesAreNeverEmptyAndJoinToTheText) {
  RandomText random(8);
  for (int round = 0; round < 500; ++round) {
    const std::string text = round % 2 ? random.bytes(random.below(200)) : random.unicode(random.below(100));
    std::string joined;
    for (const std::string& piece : split(text)) {
      EXPECT_FALSE(piece.empty());
      joined += piece;
    }
    EXPECT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace synod
