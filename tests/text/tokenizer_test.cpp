#include "text/tokenizer.h"

#include <thread>

#include "text/byte_alphabet.h"
#include "text_testing.h"

namespace synod {
namespace {

using namespace text_testing;
using Ids = std::vector<int32_t>;

const std::vector<const Tokenizer*>& minis() {
  static const std::vector<const Tokenizer*> both = {&gemma4_mini(), &deepseek4_mini()};
  return both;
}

std::string bytes_of_all(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.bytes_of(id);
  return bytes;
}

// The character tokenizer reads a literal U+2581 as a blank, by design.
std::string visible_blanks_to_blanks(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const bool blank = text.substr(pos, 3) == "\u2581";
    out.push_back(blank ? ' ' : text[pos]);
    pos += blank ? 3 : 1;
  }
  return out;
}

bool has_added_token(const Tokenizer& tokenizer, const std::string& text) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const TokenKind kind = tokenizer.kind(id);
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined) continue;
    if (text.find(tokenizer.bytes_of(id)) != std::string::npos) return true;
  }
  return false;
}

void expect_fixture_ids(const Tokenizer& tokenizer, const std::string& samples_name) {
  const auto samples = read_samples(data_path(samples_name));
  ASSERT_GE(samples.size(), 60u);
  size_t n_plain = 0;
  for (const Sample& sample : samples) {
    EXPECT_EQ(tokenizer.encode(sample.text, /*parse_special=*/true), sample.ids) << sample.text;
    if (has_added_token(tokenizer, sample.text)) continue;
    ++n_plain;
    EXPECT_EQ(tokenizer.encode(sample.text), sample.ids) << sample.text;
  }
  EXPECT_GT(n_plain, 50u);
}

TEST(Tokenizer, GemmaMiniGivesThePublishedIds) { expect_fixture_ids(gemma4_mini(), "gemma4-mini.ids.json"); }

TEST(Tokenizer, DeepseekMiniGivesThePublishedIds) {
  expect_fixture_ids(deepseek4_mini(), "deepseek4-mini.ids.json");
}

TEST(Tokenizer, FixtureIdsDecodeToTheirText) {
  for (const Sample& sample : read_samples(data_path("deepseek4-mini.ids.json"))) {
    EXPECT_EQ(deepseek4_mini().decode(sample.ids), sample.text);
  }
  for (const Sample& sample : read_samples(data_path("gemma4-mini.ids.json"))) {
    EXPECT_EQ(gemma4_mini().decode(sample.ids), visible_blanks_to_blanks(sample.text));
  }
}

TEST(Tokenizer, RandomBytesSurviveARoundTrip) {
  RandomText random(1);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random.bytes(random.below(400));
    EXPECT_EQ(bytes_of_all(deepseek4_mini(), deepseek4_mini().encode(text)), text);
    EXPECT_EQ(bytes_of_all(gemma4_mini(), gemma4_mini().encode(text)), visible_blanks_to_blanks(text));
  }
}

TEST(Tokenizer, RandomUnicodeSurvivesARoundTripAndDecodesToItself) {
  RandomText random(2);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random.unicode(random.below(200));
    EXPECT_EQ(deepseek4_mini().decode(deepseek4_mini().encode(text)), text);
    EXPECT_EQ(gemma4_mini().decode(gemma4_mini().encode(text)), visible_blanks_to_blanks(text));
  }
}

TEST(Tokenizer, InvalidUtf8BecomesByteTokensOfTheCharacterVocabulary) {
  const auto byte = [](const char* piece) { return gemma4_mini().find(piece).value(); };
  EXPECT_EQ(gemma4_mini().encode("\xFF\xC0"), (Ids{byte("<0xFF>"), byte("<0xC0>")}));
  EXPECT_EQ(gemma4_mini().encode("\xE4\xBD"), (Ids{byte("<0xE4>"), byte("<0xBD>")}));
  EXPECT_EQ(gemma4_mini().kind(byte("<0xFF>")), TokenKind::kByte);
}

TEST(Tokenizer, TextThatLooksSpecialStaysTextUnlessAsked) {
  for (const Tokenizer* tokenizer : minis()) {
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      const TokenKind kind = tokenizer->kind(id);
      if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined) continue;
      const std::string text(tokenizer->bytes_of(id));
      EXPECT_EQ(tokenizer->encode(text, true), Ids{id}) << text;
      const Ids plain = tokenizer->encode(std::string("a").append(text).append("b"));
      EXPECT_EQ(std::count(plain.begin(), plain.end(), id), 0) << text;
    }
  }
}

TEST(Tokenizer, SpecialTextIsLeftOutOfDecodingUnlessKept) {
  const Ids ids = gemma4_mini().encode("<|turn>user\nhi<turn|>", true);
  EXPECT_EQ(gemma4_mini().decode(ids), "<|turn>user\nhi<turn|>");
  EXPECT_EQ(gemma4_mini().decode(ids, false), "user\nhi");
  // User-defined tokens are text: think tags stay visible.
  const Ids thought = deepseek4_mini().encode("<\uFF5CUser\uFF5C>q<think>x</think>", true);
  EXPECT_EQ(deepseek4_mini().decode(thought, false), "q<think>x</think>");
}

TEST(Tokenizer, NamesItsRolesAndKinds) {
  EXPECT_EQ(gemma4_mini().data().bos, 2);
  EXPECT_EQ(gemma4_mini().data().eos, 1);
  EXPECT_EQ(gemma4_mini().data().pad, 0);
  EXPECT_EQ(gemma4_mini().data().unk, 3);
  EXPECT_EQ(gemma4_mini().find("<|turn>"), 5);
  EXPECT_EQ(gemma4_mini().kind(5), TokenKind::kControl);
  EXPECT_EQ(gemma4_mini().find("no such piece"), std::nullopt);
  EXPECT_EQ(gemma4_mini().find(""), std::nullopt);
  EXPECT_EQ(gemma4_mini().vocab_size(), 8192);
  EXPECT_EQ(deepseek4_mini().data().bos, 0);
  EXPECT_EQ(deepseek4_mini().data().eos, 1);
  EXPECT_EQ(deepseek4_mini().data().unk, std::nullopt);
  EXPECT_EQ(deepseek4_mini().kind(5), TokenKind::kUserDefined);
  EXPECT_FALSE(gemma4_mini().data().add_bos);
}

TEST(Tokenizer, RefusesIdsOutsideTheVocabulary) {
  for (const int32_t id : {-1, 8192, INT32_MAX, INT32_MIN}) {
    try {
      gemma4_mini().bytes_of(id);
      ADD_FAILURE() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kNumeric);
    }
    EXPECT_THROW(gemma4_mini().decode(Ids{id}), Error);
    EXPECT_THROW(StreamDecoder(gemma4_mini()).push(id), Error);
  }
}

TEST(Tokenizer, EncodesTheSameFromSeveralThreads) {
  const std::string text = RandomText(9).unicode(2000);
  for (const Tokenizer* tokenizer : minis()) {
    const Ids expected = tokenizer->encode(text, true);
    std::vector<Ids> got(4);
    std::vector<std::thread> threads;
    for (Ids& ids : got) threads.emplace_back([&] { ids = tokenizer->encode(text, true); });
    for (std::thread& thread : threads) thread.join();
    for (const Ids& ids : got) EXPECT_EQ(ids, expected);
  }
}

// ------------------------------------------------------------------------------------------------ small
// vocabularies

TokenizerData small_characters() {
  TokenizerData data;
  data.scheme = TokenizerData::Scheme::kCharacterBpe;
  data.pieces = {"<unk>", "<bos>", "a", "b", "c", "ab", "bc", "abc", "\u2581", "\u2581a", "<0x78>", "bc"};
  data.kinds.assign(data.pieces.size(), TokenKind::kNormal);
  data.kinds[0] = TokenKind::kUnknown;
  data.kinds[1] = TokenKind::kControl;
  data.kinds[10] = TokenKind::kByte;
  data.unk = 0;
  data.merges = {{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"\u2581", "a"}};
  return data;
}

TEST(Tokenizer, MergesByRankAndLeftmostOnEqualRank) {
  const Tokenizer tokenizer(small_characters(), "small");
  EXPECT_EQ(tokenizer.encode("abc"), Ids{7});  // bc before ab, then abc
  EXPECT_EQ(tokenizer.encode("ab c"), (Ids{5, 8, 4}));
  EXPECT_EQ(tokenizer.encode(" a"), Ids{9});
  EXPECT_EQ(tokenizer.find("bc"), 6);  // the lower of two ids
  TokenizerData runs = small_characters();
  runs.pieces.insert(runs.pieces.end(), {"aa", "aaa"});
  runs.kinds.insert(runs.kinds.end(), 2, TokenKind::kNormal);
  runs.merges = {{"a", "a"}, {"aa", "a"}};
  EXPECT_EQ(Tokenizer(runs, "runs").encode("aaaaa"), (Ids{12, 13}));
}

TEST(Tokenizer, FusesUnknownCharactersWhenBytesAreMissing) {
  const Tokenizer tokenizer(small_characters(), "small");
  EXPECT_EQ(tokenizer.encode("x"), Ids{10});  // its byte piece exists
  EXPECT_EQ(tokenizer.encode("ayz\u00E9\xFF"
                             "b"),
            (Ids{2, 0, 3}));
  EXPECT_EQ(tokenizer.encode("yaz"), (Ids{0, 2, 0}));
  TokenizerData data = small_characters();
  data.unk.reset();
  EXPECT_EQ(Tokenizer(data, "small").encode("ayb"), Ids{5});  // left out, as the published code does
}

TEST(Tokenizer, MatchesTheLeftmostThenTheLongestAddedToken) {
  TokenizerData data = small_characters();
  data.pieces.insert(data.pieces.end(), {"<x>", "<x><y>", "x><y>b", "a b"});
  data.kinds.insert(data.kinds.end(), {TokenKind::kControl, TokenKind::kUserDefined, TokenKind::kControl,
                                       TokenKind::kUserDefined});
  const Tokenizer tokenizer(data, "small");
  EXPECT_EQ(tokenizer.encode("a<x><y>b", true), (Ids{2, 13, 3}));
  EXPECT_EQ(tokenizer.encode("<x><x><y>", true), (Ids{12, 13}));
  EXPECT_EQ(tokenizer.encode("aa b", true), (Ids{2, 15}));
  EXPECT_EQ(tokenizer.encode("<bos>a", true), (Ids{1, 2}));
}

TEST(Tokenizer, NeverMergesPlainTextIntoAControlToken) {
  TokenizerData data = small_characters();
  data.kinds[5] = TokenKind::kControl;  // "ab", which has a merge
  const Tokenizer tokenizer(data, "small");
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{2, 3}));
  EXPECT_EQ(tokenizer.encode("ab", true), Ids{5});
}

TEST(Tokenizer, TakesUserDefinedRunsOfPlainBlanksForVisibleOnes) {
  TokenizerData data = small_characters();
  data.pieces.push_back("  ");  // as GGUF files store the piece of two blanks
  data.kinds.push_back(TokenKind::kUserDefined);
  data.merges.insert(data.merges.begin(), {"\u2581", "\u2581"});
  const Tokenizer tokenizer(data, "small");
  EXPECT_EQ(tokenizer.encode("  a"), (Ids{12, 2}));
  EXPECT_EQ(tokenizer.encode("\u2581\u2581", true), Ids{12});
  EXPECT_EQ(tokenizer.bytes_of(12), "  ");
}

TEST(Tokenizer, RefusesDataThatDoesNotFitTogether) {
  const auto message = [](auto change) {
    TokenizerData data = small_characters();
    change(data);
    return bad_file_message([&] { Tokenizer(data, "small.gguf"); });
  };
  EXPECT_NE(message([](TokenizerData& d) { d.kinds.pop_back(); }).find("12 pieces but 11"),
            std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) { d.bos = 12; }).find("bos"), std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) { d.eos = -1; }).find("eos"), std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) { d.kinds[3] = TokenKind(7); }).find("type 7"), std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) {
              d.merges.push_back({"c", "a"});
            }).find("'ca'"),
            std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) { d.merges.push_back({"q", "a"}); }).find("'q'"), std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) {
              d.merges.push_back({"", "a"});
            }).find("merge 4"),
            std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) { d.pieces[3].assign(70000, 'x'); }).find("70000"),
            std::string::npos);
  EXPECT_NE(message([](TokenizerData& d) {
              d.pieces.clear(), d.kinds.clear(), d.merges.clear(), d.unk.reset();
            }).find("no pieces"),
            std::string::npos);
}

// --------------------------------------------------------------------------------------------------------
// streaming

void expect_stream_equals_decode(const Tokenizer& tokenizer, const Ids& ids, bool keep_special) {
  StreamDecoder decoder(tokenizer, keep_special);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string part = decoder.push(id);
    for (size_t pos = 0; pos < part.size();) {
      const Utf8Char next = decode_utf8(part, pos);
      ASSERT_EQ(next.status, Utf8Status::kValid);
      pos += next.length;
    }
    streamed += part;
  }
  streamed += decoder.flush();
  EXPECT_EQ(streamed, tokenizer.decode(ids, keep_special));
  EXPECT_EQ(decoder.flush(), "");
}

TEST(StreamDecoder, AnyIdsGiveWholeCharactersAndTheTextOfDecode) {
  RandomText random(3);
  for (const Tokenizer* tokenizer : minis()) {
    for (int round = 0; round < 300; ++round) {
      Ids ids;
      // Half of the ids are low: specials and bytes, so that broken sequences are common.
      for (size_t i = random.below(60); i > 0; --i) {
        ids.push_back(int32_t(random.below(random.below(2) ? 280 : size_t(tokenizer->vocab_size()))));
      }
      expect_stream_equals_decode(*tokenizer, ids, round % 2 == 0);
    }
  }
}

TEST(StreamDecoder, HoldsACharacterBackUntilItsLastByte) {
  const Ids ids = gemma4_mini().encode("\u4F60");
  ASSERT_EQ(ids.size(), 3u);
  StreamDecoder decoder(gemma4_mini());
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(ids[1]), "");
  EXPECT_EQ(decoder.push(ids[2]), "\u4F60");
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.push(2), "");  // a skipped control token between the bytes
  EXPECT_EQ(decoder.push(ids[1]), "");
  EXPECT_EQ(decoder.push(gemma4_mini().encode("a")[0]),
            "\uFFFD\uFFFD"
            "a");
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
}

TEST(StreamDecoder, MarksDamageAsEachFamilysDecoderDoes) {
  // U+20AC without its last byte: one mark per byte for Gemma, one per damaged sequence for DeepSeek.
  EXPECT_EQ(gemma4_mini().decode(gemma4_mini().encode("\xE2\x82!")), "\uFFFD\uFFFD!");
  EXPECT_EQ(deepseek4_mini().decode(deepseek4_mini().encode("\xE2\x82!")), "\uFFFD!");
  EXPECT_EQ(deepseek4_mini().decode(deepseek4_mini().encode("\xF0\x9F\xFF\xC0\xAF")),
            "\uFFFD\uFFFD\uFFFD\uFFFD");
}

// -----------------------------------------------------------------------------------------------------------
// timing

TEST(Tokenizer, EncodesAMegabyteOfAnythingWithinASecond) {
  constexpr size_t kBytes = 1 << 20;
  RandomText random(4);
  std::vector<std::string> letters;
  for (char c = 'a'; c <= 'z'; ++c) letters.push_back({c});
  letters.push_back(" ");
  std::string pairs;
  while (pairs.size() < kBytes) pairs += "ab";
  std::string line_then_blanks = "\n" + std::string(kBytes, ' ');
  const std::pair<const char*, std::string> texts[] = {
      {"one letter", std::string(kBytes, 'a')},
      {"blanks", std::string(kBytes, ' ')},
      {"newlines", std::string(kBytes, '\n')},
      {"carriage returns", std::string(kBytes, '\r')},
      {"digits", std::string(kBytes, '7')},
      {"punctuation", std::string(kBytes, '!')},
      {"controls", std::string(kBytes, '\x01')},
      {"newline and blanks", line_then_blanks},
      {"blanks and a letter", std::string(kBytes, ' ') + "x"},
      {"ab", pairs},
      {"less-than signs", std::string(kBytes, '<')},
      {"random letters", random.from(letters, kBytes)},
      {"random bytes", random.bytes(kBytes)}};
  for (const Tokenizer* tokenizer : minis()) {
    for (const auto& [name, text] : texts) {
      Ids ids;
      const double took = seconds([&, &input = text] { ids = tokenizer->encode(input, true); });
      EXPECT_FALSE(ids.empty());
      if (kTimingCounts) {
        EXPECT_LT(took, 1.0) << name;
      }
      RecordProperty(name, std::to_string(took));
    }
  }
}

TEST(ByteAlphabet, SpellsEveryByteInOneCharacterAndBack) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string piece;
    append_utf8(piece, byte_to_character(static_cast<unsigned char>(byte)));
    EXPECT_EQ(bytes_from_alphabet(piece), std::string(1, char(byte)));
  }
  EXPECT_EQ(byte_to_character(' '), 0x120u);
  EXPECT_EQ(byte_to_character('\n'), 0x10Au);
  EXPECT_EQ(bytes_from_alphabet("\u4F60"), std::nullopt);
  EXPECT_EQ(bytes_from_alphabet(" "), std::nullopt);
}

}  // namespace
}  // namespace synod
