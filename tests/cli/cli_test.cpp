// The program as its users see it: stdout, stderr, exit codes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "process.h"

namespace synod {
namespace {

const std::string kModels = SYNOD_SOURCE_DIR "/models/";
const std::string kData = SYNOD_SOURCE_DIR "/tests/data/";

TEST(Cli, HelpAndVersionSucceedAndSayWhatThereIs) {
  const ProcessResult help = synod_run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* verb : {"run", "logits", "tokenize", "inspect", "convert", "completions"}) {
    EXPECT_NE(help.out.find(verb), std::string::npos) << verb;
  }
  EXPECT_EQ(synod_run({"--version"}).out.rfind("synod ", 0), 0U);
  EXPECT_EQ(synod_run({"run", "--help"}).code, 0);
}

TEST(Cli, UsageErrorsExitWith2) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"fly"},
           {"run", "--no-such-option"},
           {"run", "-p", "x", "--temp", "-1"},
           {"run", "-p", "x", "--top-p", "0"},
           {"run", "-p", "x", "--backend", "abacus"},
           {"run", "-p", "x", "-n", "many"},
           {"run", "-p", "x", "-f", "/dev/null"},
           {"run", "-p", "", "--raw", "-c", "1"},
           {"logits", "--ids", "1,b", "--out", "/tmp/never"},
           {"logits", "--ids", "1,99999999", "--out", "/tmp/never"},
           {"logits", "--ids", "1,-4", "--out", "/tmp/never"},
           {"logits", "--ids", "1,2", "--chunks", "0", "--out", "/tmp/never"},
           {"logits", "--out", "/tmp/never"},
           {"tokenize", "--decode", "--ids", "123456789"},
           {"convert", kData + "checkpoints/gemma4-dense-tiny"}}) {
    const ProcessResult r = synod_run(arguments);
    EXPECT_EQ(r.code, 2) << (arguments.empty() ? "" : arguments[0]) << ": " << r.err;
    EXPECT_FALSE(r.err.empty());
  }
}

TEST(Cli, MissingModelsExitWith5) {
  EXPECT_EQ(synod_run({"run", "/nowhere/model.gguf", "-p", "x"}).code, 5);
  EXPECT_EQ(synod_run({"inspect", "/nowhere"}).code, 5);
}

TEST(Cli, DamagedModelsExitWith3AndNameTheFile) {
  const test::TempFolder dir;
  const std::string whole = read_all(kModels + "gemma4-mini-q8_0.gguf");
  ASSERT_GT(whole.size(), 1000U);
  const std::vector<std::pair<std::string, std::string>> damaged = {
      {"empty.gguf", ""},
      {"magic.gguf", "NOPE" + whole.substr(4)},
      {"header.gguf", whole.substr(0, 300)},
      {"cut.gguf", whole.substr(0, whole.size() - 100)},
  };
  for (const auto& [file, bytes] : damaged) {
    std::ofstream(dir / file, std::ios::binary) << bytes;
    const ProcessResult r = synod_run({"run", (dir / file).string(), "-p", "x"});
    EXPECT_EQ(r.code, 3) << file << ": " << r.err;
    EXPECT_NE(r.err.find(file), std::string::npos) << r.err;
  }
}

TEST(Cli, TheBundledModelAnswersByDefault) {
  const ProcessResult r = synod_run({"run", "-p", "Quote Genesis 1:1."});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "In the beginning God created the heaven and the earth.\n");
  EXPECT_EQ(synod_run({"run"}, "Quote Genesis 1:1.").out, r.out) << "from stdin";
}

TEST(Cli, TheDeepSeekModelAnswersAndThinks) {
  const std::string model = kModels + "deepseek4-mini-q8_0.gguf";
  const ProcessResult r = synod_run({"run", model, "-q", "-p", "Quote Genesis 1:1."});
  EXPECT_EQ(r.out, "In the beginning God created the heaven and the earth.\n") << r.err;
  const ProcessResult thinking =
      synod_run({"run", model, "--json", "--reasoning", "on", "-p", "Define heat."});
  ASSERT_EQ(thinking.code, 0) << thinking.err;
  const auto json = nlohmann::json::parse(thinking.out);
  EXPECT_FALSE(json["reasoning"].get<std::string>().empty());
  EXPECT_FALSE(json["text"].get<std::string>().empty());
  EXPECT_EQ(json["text"].get<std::string>().find("think>"), std::string::npos) << "markup leaked";
  EXPECT_EQ(json["finish_reason"], "stop");
}

TEST(Cli, GemmaThinksInAChannelOfItsOwn) {
  const ProcessResult r = synod_run({"run", "--json", "--reasoning", "on", "-p", "Define heat."});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto json = nlohmann::json::parse(r.out);
  EXPECT_FALSE(json["reasoning"].get<std::string>().empty());
  EXPECT_EQ(json["text"].get<std::string>().find("channel"), std::string::npos) << r.out;
}

TEST(Cli, MaxTokensAndSeedsAreKept) {
  const auto run = [](const std::string& seed) {
    return nlohmann::json::parse(synod_run({"run", "--json", "-p", "Define hope.", "-n", "8", "--temp", "2",
                                            "-s", seed, "--ignore-eos"})
                                     .out);
  };
  const auto a = run("1");
  EXPECT_EQ(a["ids"].size(), 8U);
  EXPECT_EQ(a["finish_reason"], "length");
  EXPECT_EQ(run("1")["ids"], a["ids"]);
  EXPECT_NE(run("2")["ids"], a["ids"]);
}

TEST(Cli, LogitsAreTheSameWhateverTheChunks) {
  const test::TempFolder dir;
  const std::string model = kData + "checkpoints/deepseek4-tiny";
  std::string ids;
  for (int i = 0; i < 150; ++i) ids += std::to_string((i * 37 + 5) % 512) + " ";
  std::ofstream(dir / "ids") << ids;
  std::string whole;
  for (const char* chunks : {"", "1", "7", "64,3"}) {
    const std::string out = (dir / "out.safetensors").string();
    std::vector<std::string> arguments = {"logits", model, "--ids-file", (dir / "ids").string(),
                                          "--out",  out,   "--hidden"};
    if (*chunks != 0) arguments.insert(arguments.end(), {"--chunks", chunks});
    const ProcessResult r = synod_run(arguments);
    ASSERT_EQ(r.code, 0) << r.err;
    const std::string bytes = read_all(out);
    if (whole.empty()) whole = bytes;
    EXPECT_TRUE(bytes == whole) << "chunks " << chunks;
  }
}

TEST(Cli, TokenizeAndDecodeAreInverse) {
  const std::string text = "Hello, <|turn> w\xc3\xb6rld \xf0\x9f\x98\x80";
  const ProcessResult ids = synod_run({"tokenize", "-p", text});
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(synod_run({"tokenize", "--decode", "--ids", ids.out}).out, text + "\n");
  const ProcessResult special = synod_run({"tokenize", "-p", "<|turn>", "--parse-special"});
  EXPECT_EQ(special.out, "5\n");
  EXPECT_NE(synod_run({"tokenize", "-p", "<|turn>"}).out, "5\n");
}

TEST(Cli, InspectPlansModelsAndBareConfigurations) {
  const ProcessResult model = synod_run({"inspect", "--json", "--plan", "--tensors"});
  ASSERT_EQ(model.code, 0) << model.err;
  const auto json = nlohmann::json::parse(model.out);
  EXPECT_EQ(json["model"]["architecture"], "gemma4");
  EXPECT_GT(json["plan"]["total"].get<int64_t>(), json["plan"]["weights"].get<int64_t>());
  for (const char* config :
       {"deepseek4-flash", "deepseek4-pro", "gemma4-26b-a4b", "gemma4-31b", "gemma4-e2b", "gemma4-e4b"}) {
    const ProcessResult r = synod_run({"inspect", kData + "configs/" + config + ".json", "--type", "q4_k"});
    EXPECT_EQ(r.code, 0) << config << ": " << r.err;
    EXPECT_NE(r.out.find("memory plan"), std::string::npos);
  }
}

TEST(Cli, RefusesAModelThatDoesNotFitWithTheNumbers) {
  const ProcessResult r = synod_run({"run", "-p", "x", "-c", "2000000000"});
  EXPECT_EQ(r.code, 4) << r.err;
  EXPECT_NE(r.err.find("cache"), std::string::npos) << r.err;
}

TEST(Cli, ConvertedCheckpointsGiveTheSameLogitsAndFilesAreNotOverwrittenUnasked) {
  const test::TempFolder dir;
  for (const char* name : {"gemma4-dense-tiny", "gemma4-mlx4", "gemma4-nvfp4", "deepseek4-official"}) {
    const std::string model = kData + "checkpoints/" + name;
    const std::string converted = (dir / (std::string(name) + ".gguf")).string();
    const ProcessResult r = synod_run({"convert", model, converted, "--type", "f32"});
    ASSERT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.err.find("token ids only"), std::string::npos) << "the fixture has no tokenizer: " << r.err;
    const std::string a = (dir / "a").string(), b = (dir / "b").string();
    ASSERT_EQ(synod_run({"logits", model, "--ids", "3,1,4,1,5,9,2,6", "--out", a}).code, 0);
    ASSERT_EQ(synod_run({"logits", converted, "--ids", "3,1,4,1,5,9,2,6", "--out", b}).code, 0);
    EXPECT_TRUE(read_all(a) == read_all(b)) << name;
    EXPECT_EQ(synod_run({"convert", model, converted}).code, 2);
  }
}

TEST(Cli, RunAnswersInAGrammarOrSchema) {
  const ProcessResult grammar =
      synod_run({"run", "-q", "-p", "Define hope.", "--grammar", "root ::= \"yes\" | \"no\""});
  EXPECT_EQ(grammar.code, 0) << grammar.err;
  EXPECT_TRUE(grammar.out == "yes\n" || grammar.out == "no\n") << grammar.out;
  const ProcessResult schema =
      synod_run({"run", "-q", "-p", "Define hope.", "-j",
                 R"({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]})"});
  EXPECT_EQ(schema.code, 0) << schema.err;
  EXPECT_TRUE(nlohmann::json::parse(schema.out)["n"].is_number_integer()) << schema.out;
  EXPECT_EQ(synod_run({"run", "-p", "x", "--grammar", "root ::= ("}).code, 2);
  EXPECT_EQ(synod_run({"run", "-p", "x", "--grammar", "root ::= \"a\"", "-j", "{}"}).code, 2);
}

TEST(Cli, RunUsesTheTemplateThatIsAskedFor) {
  const ProcessResult native = synod_run({"run", "-q", "-p", "Quote Genesis 1:1."});
  const ProcessResult stored = synod_run({"run", "-q", "-p", "Quote Genesis 1:1.", "--jinja"});
  EXPECT_EQ(stored.code, 0) << stored.err;
  EXPECT_EQ(stored.out, native.out);
  const auto prompt_n = [](const std::string& chat_template) {
    const ProcessResult r =
        synod_run({"run", "--json", "-n", "1", "-p", "Quote Genesis 1:1.", "--chat-template", chat_template});
    EXPECT_EQ(r.code, 0) << r.err;
    return nlohmann::json::parse(r.out)["timings"]["prompt_n"].get<int64_t>();
  };
  EXPECT_LT(prompt_n("{{ messages[0].content }}"), prompt_n("Once upon a time: {{ messages[0].content }}"));
  EXPECT_EQ(synod_run({"run", "-p", "x", "--chat-template", "chatml"}).code, 2);
  EXPECT_EQ(synod_run({"run", "-p", "x", "--chat-template", "{{ messages"}).code, 3);
  EXPECT_EQ(synod_run({"run", "-p", "x", "--chat-template-file", "/nowhere"}).code, 5);
}

TEST(Cli, RunShowsToolCallsApart) {
  const auto json =
      nlohmann::json::parse(synod_run({"run", "--json", "-p", "What is the weather in Oslo?"}).out);
  for (const auto& call : json["tool_calls"]) {
    EXPECT_TRUE(nlohmann::json::accept(call["arguments"].get<std::string>()));
  }
  EXPECT_EQ(json["text"].get<std::string>().find("<|"), std::string::npos) << "markup leaked";
}

TEST(Cli, TraceAndPlanAreWrittenAsJson) {
  const test::TempFolder dir;
  const std::string trace = (dir / "trace.json").string(), plan = (dir / "plan.json").string();
  const ProcessResult r =
      synod_run({"run", "-p", "Define hope.", "-n", "2", "--trace", trace, "--dump-plan", plan, "--ops"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(nlohmann::json::accept(read_all(trace)));
  EXPECT_TRUE(nlohmann::json::accept(read_all(plan)));
  EXPECT_NE(r.err.find("linear"), std::string::npos) << "table of ops";
}

TEST(Cli, CompletionsNameEveryVerb) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const ProcessResult r = synod_run({"completions", shell});
    EXPECT_EQ(r.code, 0);
    EXPECT_NE(r.out.find("tokenize"), std::string::npos);
    EXPECT_NE(r.out.find("top-k"), std::string::npos) << shell;
  }
}

}  // namespace
}  // namespace synod
