// What tokenizer.json may say: the spellings that mean a family's pipeline, and everything that must be
// refused.
#include <functional>
#include <set>

#include "text_testing.h"

namespace synod {
namespace {

using namespace text_testing;
using nlohmann::json;
using Ids = std::vector<int32_t>;

// The mini's pipeline around a vocabulary that fits on a line.
json small_gemma() {
  static const json whole = json::parse(read_file(data_path("gemma4-mini.tokenizer.json")));
  json file = whole;
  file["added_tokens"] = json::array({whole["added_tokens"][0], whole["added_tokens"][1]});
  file["model"]["vocab"] = {{"<pad>", 0}, {"<eos>", 1}, {"<unk>", 2}, {"a", 3},
                            {"b", 4},     {"ab", 5},    {"\u2581", 6}};
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  return file;
}

json small_deepseek() {
  static const json whole = json::parse(read_file(data_path("deepseek4-mini.tokenizer.json")));
  json file = whole;
  file["added_tokens"] = json::array();
  file["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"\u0120", 3}};
  file["model"]["merges"] = json::array({"a b"});
  return file;
}

TokenizerData parse(const json& file) { return tokenizer_data_from_json(file.dump(), "x/tokenizer.json"); }

using Change = std::function<void(json&)>;

std::string refusal(json file, const Change& change) {
  change(file);
  const std::string message = bad_file_message([&] { Tokenizer(parse(file), "x/tokenizer.json"); });
  EXPECT_NE(message.find("x/tokenizer.json"), std::string::npos) << message;
  return message;
}

void expect_refusals(const json& file, const std::vector<std::pair<Change, std::string>>& changes) {
  for (const auto& [change, named] : changes) {
    const std::string message = refusal(file, change);
    EXPECT_NE(message.find(named), std::string::npos) << "'" << named << "' is not in: " << message;
  }
}

TEST(TokenizerJson, ReadsBothSmallFiles) {
  EXPECT_EQ(Tokenizer(parse(small_gemma()), "g").encode("ab a"), (Ids{5, 6, 3}));
  EXPECT_EQ(Tokenizer(parse(small_deepseek()), "d").encode("ab a"), (Ids{2, 3, 0}));
}

TEST(TokenizerJson, TakesEquivalentSpellingsOfThePipeline) {
  json gemma = small_gemma();
  gemma["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array({gemma["normalizer"]})}};
  gemma["pre_tokenizer"] = nullptr;
  gemma["model"]["merges"] = {"a b"};
  gemma["decoder"] = nullptr;
  gemma.erase("post_processor");
  EXPECT_EQ(Tokenizer(parse(gemma), "g").encode("ab a"), (Ids{5, 6, 3}));

  json deepseek = small_deepseek();
  deepseek["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  json& words = deepseek["pre_tokenizer"]["pretokenizers"][2]["pattern"]["Regex"];
  std::string pattern = words;
  for (const auto& [from, to] : {std::pair("\\r", "\r"), std::pair("\\n", "\n")}) {
    for (size_t at; (at = pattern.find(from)) != std::string::npos;) pattern.replace(at, 2, to);
  }
  EXPECT_NE(pattern, words.get<std::string>());
  words = pattern;
  deepseek["pre_tokenizer"]["pretokenizers"][1]["pattern"]["Regex"] =
      "[\\u4e00-\\u9FA5\\u3040-\\u309f\\u30A0-\\u30ff]+";
  deepseek["model"].erase("ignore_merges");
  EXPECT_EQ(Tokenizer(parse(deepseek), "d").encode("ab a"), (Ids{2, 3, 0}));
}

TEST(TokenizerJson, ReadsTheTokenBeforeEveryText) {
  json file = small_gemma();
  EXPECT_FALSE(parse(file).add_bos);
  file["post_processor"]["single"] = json::parse(
      R"([{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}])");
  EXPECT_TRUE(parse(file).add_bos);
  EXPECT_EQ(parse(file).bos, 1);
  // A token after the text is not one before it.
  file["post_processor"]["single"] = json::parse(
      R"([{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}])");
  EXPECT_FALSE(parse(file).add_bos);
}

TEST(TokenizerJson, PutsAddedTokensBeyondTheVocabularyAndFillsHoles) {
  json file = small_deepseek();
  const json added = {{"single_word", false}, {"lstrip", false}, {"rstrip", false}};
  file["added_tokens"] = {added, added};
  file["added_tokens"][0].update(
      {{"id", 6}, {"content", "<think>"}, {"special", false}, {"normalized", true}});
  file["added_tokens"][1].update({{"id", 8}, {"content", "<end>"}, {"special", true}, {"normalized", false}});
  const Tokenizer tokenizer(parse(file), "d");
  EXPECT_EQ(tokenizer.vocab_size(), 9);
  EXPECT_EQ(tokenizer.kind(6), TokenKind::kUserDefined);
  EXPECT_EQ(tokenizer.kind(8), TokenKind::kControl);
  for (const int32_t hole : {4, 5, 7}) {
    EXPECT_EQ(tokenizer.kind(hole), TokenKind::kUnused);
    EXPECT_EQ(tokenizer.bytes_of(hole), "");
  }
  EXPECT_EQ(tokenizer.encode("ab<think>b<end>", true), (Ids{2, 6, 1, 8}));
}

TEST(TokenizerJson, RefusesPipelinesOfOtherFamilies) {
  expect_refusals(small_gemma(),
                  {{[](json& f) { f["normalizer"] = nullptr; }, "normalizer"},
                   {[](json& f) {
                      f["normalizer"] = {{"type", "NFKC"}};
                    },
                    "NFKC"},
                   {[](json& f) { f["normalizer"]["content"] = "_"; }, "normalizer"},
                   {[](json& f) {
                      f["normalizer"] = {
                          {"type", "Sequence"},
                          {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, f["normalizer"]}}};
                    },
                    "Prepend"},
                   {[](json& f) {
                      f["pre_tokenizer"] = {{"type", "Whitespace"}};
                    },
                    "Whitespace"},
                   {[](json& f) { f["pre_tokenizer"]["pattern"]["String"] = "a"; }, "pre_tokenizer"},
                   {[](json& f) { f["pre_tokenizer"]["invert"] = true; }, "pre_tokenizer"},
                   {[](json& f) {
                      f["decoder"]["decoders"].push_back({{"type", "Strip"}});
                    },
                    "Strip"},
                   {[](json& f) { f["model"]["byte_fallback"] = false; }, "byte-level"},
                   {[](json& f) { f["model"]["fuse_unk"] = false; }, "fuse_unk"},
                   {[](json& f) { f["model"]["type"] = "Unigram"; }, "Unigram"},
                   {[](json& f) { f["model"]["dropout"] = 0.1; }, "dropout"},
                   {[](json& f) { f["model"]["ignore_merges"] = true; }, "ignore_merges"},
                   {[](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
                   {[](json& f) { f["model"]["unk_token"] = "<none>"; }, "<none>"}});
  expect_refusals(
      small_deepseek(),
      {{[](json& f) { f["pre_tokenizer"] = nullptr; }, "pre_tokenizer"},
       {[](json& f) { f["pre_tokenizer"] = f["pre_tokenizer"]["pretokenizers"][3]; }, "ByteLevel"},
       {[](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(0); }, "pre_tokenizer"},
       {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{N}"; }, "\\\\p{N}"},
       {[](json& f) { f["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Removed"; }, "Removed"},
       {[](json& f) { f["pre_tokenizer"]["pretokenizers"][2]["invert"] = true; }, "Split"},
       {[](json& f) { f["pre_tokenizer"]["pretokenizers"][3]["use_regex"] = true; }, "use_regex"},
       {[](json& f) { f["pre_tokenizer"]["pretokenizers"][3].erase("add_prefix_space"); }, "ByteLevel"},
       {[](json& f) {
          f["normalizer"] = {{"type", "NFC"}};
        },
        "NFC"},
       {[](json& f) {
          f["decoder"] = {{"type", "WordPiece"}};
        },
        "WordPiece"},
       {[](json& f) {
          f["post_processor"] = {{"type", "BertProcessing"}};
        },
        "BertProcessing"},
       {[](json& f) { f["model"]["byte_fallback"] = true; }, "byte-fallback"}});
}

TEST(TokenizerJson, RefusesWrongTypesAndIds) {
  expect_refusals(small_gemma(),
                  {{[](json& f) { f = json::array(); }, "an object"},
                   {[](json& f) { f.erase("model"); }, "model"},
                   {[](json& f) { f["model"] = 3; }, "model"},
                   {[](json& f) { f["model"].erase("vocab"); }, "vocab"},
                   {[](json& f) { f["model"]["vocab"] = json::array(); }, "vocab"},
                   {[](json& f) { f["model"]["vocab"]["a"] = -1; }, "-1"},
                   {[](json& f) { f["model"]["vocab"]["a"] = 1 << 22; }, "4194304"},
                   {[](json& f) { f["model"]["vocab"]["a"] = UINT64_MAX; }, "18446744073709551615"},
                   {[](json& f) { f["model"]["vocab"]["a"] = 3.5; }, "3.5"},
                   {[](json& f) { f["model"]["vocab"]["a"] = "3"; }, "'a'"},
                   {[](json& f) { f["model"]["vocab"]["a"] = 4; }, "id 4"},
                   {[](json& f) { f["model"]["vocab"][std::string(65537, 'x')] = 9; }, "65537"},
                   {[](json& f) { f["model"].erase("merges"); }, "merges"},
                   {[](json& f) {
                      f["model"]["merges"] = {{"a", "b", "a"}};
                    },
                    "merges[0]"},
                   {[](json& f) { f["model"]["merges"] = {"ab"}; }, "merges[0]"},
                   {[](json& f) { f["model"]["merges"] = {"a "}; }, "merges[0]"},
                   {[](json& f) { f["model"]["merges"] = {7}; }, "merges[0]"},
                   {[](json& f) { f["model"]["merges"] = {"b a"}; }, "'ba'"},
                   {[](json& f) { f["model"]["merges"] = "a b"; }, "merges"},
                   {[](json& f) { f["model"]["byte_fallback"] = "yes"; }, "byte_fallback"},
                   {[](json& f) { f["added_tokens"] = 1; }, "added_tokens"},
                   {[](json& f) { f["added_tokens"][0] = "x"; }, "added_tokens[0]"},
                   {[](json& f) { f["added_tokens"][1].erase("id"); }, "added_tokens[1]"},
                   {[](json& f) { f["added_tokens"][1]["id"] = -7; }, "-7"},
                   {[](json& f) { f["added_tokens"][1]["id"] = 1e30; }, "added_tokens[1].id"},
                   {[](json& f) { f["added_tokens"][1]["id"] = 0; }, "<pad>"},
                   {[](json& f) { f["added_tokens"][1]["content"] = ""; }, "content"},
                   {[](json& f) { f["added_tokens"][1]["lstrip"] = true; }, "lstrip"},
                   {[](json& f) { f["added_tokens"][1]["single_word"] = true; }, "single_word"},
                   {[](json& f) {
                      f["added_tokens"][1].update({{"id", 9}, {"content", "a b"}, {"normalized", true}});
                    },
                    "normalized"}});
}

TEST(TokenizerJson, RefusesEveryTruncation) {
  const std::string whole = small_gemma().dump();
  ASSERT_NO_THROW(tokenizer_data_from_json(whole, "whole"));
  for (size_t n = 0; n < whole.size(); ++n) {
    bad_file_message([&] { tokenizer_data_from_json(std::string_view(whole).substr(0, n), "cut"); });
  }
  bad_file_message([&] { tokenizer_data_from_json(whole + "x", "longer"); });
  std::string damaged = whole;
  damaged[damaged.find("<pad>")] = '\xFF';
  bad_file_message([&] { tokenizer_data_from_json(damaged, "not UTF-8"); });
  bad_file_message([&] { tokenizer_data_from_json(std::string(100000, '['), "deep"); });
}

TEST(TokenizerJson, SurvivesEveryByteChanged) {
  const std::string whole = small_deepseek().dump();
  RandomText random(10);
  size_t n_refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = char(random.below(256));
    try {
      Tokenizer(tokenizer_data_from_json(changed, "changed"), "changed").encode("ab a1 \u4F60", true);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
      ++n_refused;
    }
  }
  EXPECT_GT(n_refused, whole.size() / 2);
}

}  // namespace
}  // namespace synod
