// Checkpoint: containers, configuration files and what the user is told when something is missing.
#include "formats/checkpoint.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/test_files.h"

namespace synod {
namespace {

using nlohmann::json;
using test::error_of;
using test::GgufBytes;
using test::TempFolder;

void write_model(const std::filesystem::path& path) {
  std::vector<float> values = {1, 2};
  write_safetensors(path, std::vector{Tensor::contiguous(values.data(), DType::kF32, {2}, "w")});
}

struct ModelFolder : TempFolder {
  ModelFolder() {
    write_model(*this / "model.safetensors");
    write("config.json", R"({"model_type":"gemma4"})");
  }
  Checkpoint open() const { return Checkpoint::open(path()); }
};

std::string open_error(const std::filesystem::path& path, Error::Kind kind) {
  return error_of([&] { Checkpoint::open(path); }, kind);
}

TEST(Checkpoint, OpensAFolder) {
  const ModelFolder folder;
  folder.write("generation_config.json", R"({"top_k":64})");
  const Checkpoint model = folder.open();
  EXPECT_EQ(model.container(), Checkpoint::Container::kSafetensors);
  EXPECT_EQ(model.config()["model_type"], "gemma4");
  EXPECT_EQ(model.generation_config()["top_k"], 64);
  EXPECT_TRUE(model.tokenizer_config().is_null());
  EXPECT_EQ(model.tokenizer_json(), std::nullopt);
  EXPECT_EQ(model.chat_template(), std::nullopt);
  ASSERT_NE(model.find("w"), nullptr);
  EXPECT_EQ(model.find("w")->as<float>()[1], 2.0F);
  EXPECT_EQ(model.find("x"), nullptr);
  EXPECT_EQ(model.data_bytes(), 8);
}

TEST(Checkpoint, OpensASafetensorsFileBesideItsConfiguration) {
  const ModelFolder folder;
  write_model(folder / "other.safetensors");
  EXPECT_EQ(Checkpoint::open(folder / "other.safetensors").config()["model_type"], "gemma4");
}

TEST(Checkpoint, OpensGgufByNameOrContent) {
  const TempFolder folder;
  GgufBytes g;
  g.key_string("general.architecture", "gemma4").key_string("tokenizer.chat_template", "{{ x }}");
  const std::string bytes = g.tensor("w", {1}, 0, GgufBytes::raw(3.0F)).build();
  folder.write("m.gguf", bytes);
  folder.write("sha256-0123", bytes);
  for (const char* name : {"m.gguf", "sha256-0123"}) {
    const Checkpoint model = Checkpoint::open(folder / name);
    EXPECT_EQ(model.container(), Checkpoint::Container::kGguf);
    EXPECT_EQ(model.gguf().get_string("general.architecture"), "gemma4");
    EXPECT_EQ(*model.find("w")->as<float>(), 3.0F);
    EXPECT_EQ(model.chat_template(), "{{ x }}");
    EXPECT_TRUE(model.config().is_null());
    EXPECT_EQ(model.tokenizer_json(), std::nullopt);
  }
}

TEST(Checkpoint, StaysValidWhenMoved) {
  const ModelFolder folder;
  Checkpoint first = folder.open();
  const Checkpoint model = std::move(first);
  EXPECT_EQ(model.find("w")->as<float>()[0], 1.0F);
  EXPECT_EQ(model.tensors().begin()->first, "w");
}

TEST(Checkpoint, SaysWhatIsExpected) {
  const TempFolder folder;
  EXPECT_CONTAINS(open_error(folder / "none", Error::Kind::kNotFound), "no such file or folder");
  EXPECT_CONTAINS(open_error(folder.path(), Error::Kind::kNotFound),
                  "expected a .gguf file, a folder with config.json");
  EXPECT_CONTAINS(open_error(folder.write("notes.txt", "hello"), Error::Kind::kBadFile),
                  "expected a .gguf file");
  EXPECT_CONTAINS(open_error(folder.write("empty.gguf", ""), Error::Kind::kBadFile), "not a GGUF file");
  folder.write("b.gguf", "");
  EXPECT_CONTAINS(open_error(folder.path(), Error::Kind::kNotFound), "b.gguf");
}

TEST(Checkpoint, MissingConfigurationIsNamed) {
  const ModelFolder folder;
  std::filesystem::remove(folder / "config.json");
  EXPECT_CONTAINS(open_error(folder.path(), Error::Kind::kNotFound), "config.json is missing");
  EXPECT_CONTAINS(open_error(folder / "model.safetensors", Error::Kind::kNotFound), "config.json is missing");
}

TEST(Checkpoint, DamagedConfigurationIsNamedWithItsPosition) {
  const ModelFolder folder;
  folder.write("config.json", "{\n  \"a\": 1,\n  \"a\": 2\n}");
  EXPECT_CONTAINS(open_error(folder.path(), Error::Kind::kBadFile),
                  "config.json: line 3, column 5: duplicate key \"a\"");
  folder.write("config.json", "[1]");
  EXPECT_CONTAINS(open_error(folder.path(), Error::Kind::kBadFile), "expected a JSON object, got array");
  folder.write("config.json", "{}");
  folder.write("generation_config.json", "{");
  EXPECT_CONTAINS(open_error(folder.path(), Error::Kind::kBadFile), "generation_config.json");
}

TEST(Checkpoint, FindsTheChatTemplate) {
  const ModelFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template":null})");
  EXPECT_EQ(folder.open().chat_template(), std::nullopt);
  folder.write("tokenizer_config.json", R"({"chat_template":"from config"})");
  EXPECT_EQ(folder.open().chat_template(), "from config");
  folder.write("tokenizer_config.json",
               R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(folder.open().chat_template(), "d");
  folder.write("tokenizer_config.json", R"({"chat_template":7})");
  EXPECT_CONTAINS(error_of([&] { folder.open().chat_template(); }), "chat_template: expected a string");
  folder.write("chat_template.jinja", "from file");
  EXPECT_EQ(folder.open().chat_template(), "from file");
}

TEST(Checkpoint, FindsTheTokenizer) {
  const ModelFolder folder;
  folder.write("tokenizer.json", "{}");
  EXPECT_EQ(folder.open().tokenizer_json(), folder / "tokenizer.json");
}

TEST(ParseJson, KeepsValues) {
  const json value = parse_json(R"( {"a":[1,-2,2.5,true,null,"x\u00e9"],"b":{"c":{}},"d":[]} )", "x.json");
  EXPECT_EQ(value, json::parse(R"({"a":[1,-2,2.5,true,null,"x\u00e9"],"b":{"c":{}},"d":[]})"));
  EXPECT_EQ(parse_json("3", "x.json"), json(3));
}

TEST(ParseJson, AllowsTheSameKeyInDifferentObjects) {
  EXPECT_EQ(parse_json(R"([{"a":1},{"a":{"a":2}}])", "x.json")[1]["a"]["a"], 2);
}

TEST(ParseJson, LimitsDepth) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_TRUE(parse_json(nested(64), "x.json").is_array());
  EXPECT_CONTAINS(error_of([&] { parse_json(nested(65), "x.json"); }),
                  "x.json: line 1, column 65: nested deeper than 64");
  error_of([&] { parse_json(std::string(1'000'000, '['), "x.json"); });
}

TEST(ParseJson, RefusesDuplicateKeys) {
  const std::string message = error_of([] { parse_json("{\"a\":1,\n\"b\":{\"c\":1,\"c\":2}}", "x.json"); });
  EXPECT_CONTAINS(message, "x.json: line 2");
  EXPECT_CONTAINS(message, "duplicate key \"c\"");
  error_of([] { parse_json(R"({"a":1,"\u0061":2})", "x.json"); });
}

TEST(ParseJson, RefusesWhatIsNotJson) {
  for (const std::string& text :
       {std::string(), std::string(" "), std::string("{"), std::string("{} x"), std::string("nul"),
        std::string("[1,]"), std::string("{'a':1}"), std::string("NaN"), std::string("\"\xff\""),
        std::string("{}\0", 3), std::string("1e999"), std::string("// x\n1")}) {
    EXPECT_CONTAINS(error_of([&] { parse_json(text, "x.json"); }), "x.json: line ");
  }
}

TEST(ParseJson, LimitsSize) {
  const std::string text((64 << 20) + 1, ' ');
  EXPECT_CONTAINS(error_of([&] { parse_json(text, "x.json"); }), "at most 67108864 bytes");
}

}  // namespace
}  // namespace synod
