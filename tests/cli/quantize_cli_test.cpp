// convert, quantize, imatrix and perplexity as their users see them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "process.h"

namespace synod {
namespace {

const std::string kGemma = SYNOD_SOURCE_DIR "/models/gemma4-mini-q8_0.gguf";
const std::string kDeepseek = SYNOD_SOURCE_DIR "/models/deepseek4-mini-q8_0.gguf";
const std::string kData = SYNOD_SOURCE_DIR "/tests/data/";

std::string some_text() {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text +=
        "In the beginning God created the heaven and the earth, and day " + std::to_string(i) + " was good. ";
  }
  return text;
}

TEST(QuantizeCli, UsageErrorsExitWith2AndSayWhat) {
  const test::TempFolder dir;
  const std::string out = (dir / "out.gguf").string();
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  for (const Case& c : std::vector<Case>{
           {{"quantize", kGemma}, "--outfile is required"},
           {{"quantize", kGemma, out, "q9"}, "q4_k_m"},
           {{"convert", kGemma, out, "--type", "q9"}, "q4_k_m"},
           {{"quantize", kGemma, out, "q4_0", "--tensor-type", "nonsense"}, "REGEX=TYPE"},
           {{"quantize", kGemma, out, "q4_0", "--tensor-type", "(=q8_0"}, "regular expression"},
           {{"quantize", kGemma, out, "q4_0", "--tensor-type", "no_such=q8_0"}, "no_such"},
           {{"quantize", kGemma, out, "q4_0", "--output-tensor-type", "q9"}, "--output-tensor-type"},
           {{"quantize", kGemma, out, "q4_0", "--split-max-size", "4X"}, "--split-max-size"},
           {{"quantize", kGemma, out, "iq2_xxs"}, "--imatrix"},
           {{"quantize", kGemma, out, "q4_0", "-t", "-1"}, "threads"},
           {{"perplexity", kGemma, "-f", "/dev/null"}, "regular file"},
           {{"imatrix", kGemma, "-f", kData + "quantize/mix_types.txt"}, "--out"}}) {
    const ProcessResult r = synod_run(c.arguments);
    EXPECT_TRUE(r.code == 2 || (r.code == 3 && c.says == "regular file")) << c.arguments[0] << ": " << r.err;
    EXPECT_NE(r.err.find(c.says), std::string::npos) << r.err;
  }
  EXPECT_EQ(synod_run({"perplexity", kGemma}, "too short").code, 2);
  EXPECT_EQ(synod_run({"perplexity", kGemma}, "").code, 2);
  EXPECT_TRUE(dir.files().empty());
}

TEST(QuantizeCli, QuantizedModelsAnswerAndFilesAreNotReplacedUnasked) {
  const test::TempFolder dir;
  const std::string out = (dir / "out.gguf").string();
  const ProcessResult r = synod_run({"quantize", kGemma, out, "Q4_K_M", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto json = nlohmann::json::parse(r.out);
  EXPECT_EQ(json["type"], "q4_k_m");
  EXPECT_LT(json["bits_per_value"].get<double>(), 6.0);
  EXPECT_EQ(synod_run({"run", out, "-q", "-p", "Quote Genesis 1:1."}).out,
            "In the beginning God created the heaven and the earth.\n");
  EXPECT_EQ(synod_run({"quantize", kGemma, out, "q8_0"}).code, 2);
  EXPECT_EQ(synod_run({"quantize", kGemma, out, "q8_0", "--force"}).code, 0);
  EXPECT_EQ(dir.files(), (std::vector<std::string>{"out.gguf", "out.gguf.receipt.json"}));
  EXPECT_EQ(synod_run({"quantize", kGemma, out, "q5_0", "--force", "--no-receipt"}).code, 0);
  EXPECT_EQ(dir.files(), std::vector<std::string>{"out.gguf"}) << "a receipt of another file would lie";
}

TEST(QuantizeCli, DryRunPrintsTheTypes) {
  const test::TempFolder dir;
  const ProcessResult r =
      synod_run({"quantize", kDeepseek, (dir / "out.gguf").string(), "q4_k_m", "--dry-run", "--tensor-type",
                 "attn_q_a=q8_0", "--output-tensor-type", "q5_k"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("bits per value"), std::string::npos);
  const auto line = [&](const std::string& name) {
    const size_t at = r.out.find(name);
    return at == std::string::npos ? "" : r.out.substr(at, r.out.find('\n', at) - at);
  };
  EXPECT_NE(line("blk.0.attn_q_a.weight").find("q8_0"), std::string::npos);
  EXPECT_NE(line("output.weight").find("q5_k"), std::string::npos);
  EXPECT_NE(line("blk.0.hc_attn_fn.weight").find("f32"), std::string::npos);
  EXPECT_TRUE(dir.files().empty());
}

TEST(QuantizeCli, ImatrixThenLowBitsThenPerplexity) {
  const test::TempFolder dir;
  const std::string text = dir.write("text.txt", some_text()).string();
  const std::string imatrix = (dir / "m.gguf").string(), out = (dir / "low.gguf").string();
  const ProcessResult collected =
      synod_run({"imatrix", kGemma, "-f", text, "-o", imatrix, "-c", "128", "--chunks", "6", "--json"});
  ASSERT_EQ(collected.code, 0) << collected.err;
  EXPECT_EQ(nlohmann::json::parse(collected.out)["chunks"], 6);
  const ProcessResult quantized = synod_run({"quantize", kGemma, out, "iq3_xxs", "--imatrix", imatrix});
  ASSERT_EQ(quantized.code, 0) << quantized.err;
  const auto receipt = nlohmann::json::parse(read_all(out + ".receipt.json"));
  EXPECT_EQ(receipt["importance"]["file"], "m.gguf");
  const ProcessResult measured =
      synod_run({"perplexity", out, "-f", text, "-c", "128", "--chunks", "4", "--kl", kGemma, "--json"});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const auto json = nlohmann::json::parse(measured.out);
  EXPECT_EQ(json["chunks"], 4);
  EXPECT_EQ(json["scored_tokens"], 4 * 63);
  EXPECT_GT(json["kl"]["mean"].get<double>(), 0.0);
  EXPECT_LE(json["kl"]["p99"].get<double>(), json["kl"]["max"].get<double>());
  EXPECT_GT(json["perplexity"].get<double>(), json["base"]["perplexity"].get<double>() * 0.9);
  EXPECT_NE(measured.err.find("[4]"), std::string::npos) << "running value";
  // Importance of another model is refused before anything is written.
  EXPECT_EQ(
      synod_run({"quantize", kDeepseek, (dir / "x.gguf").string(), "q4_k_m", "--imatrix", imatrix}).code, 3);
}

TEST(QuantizeCli, SplitsAndOpensThem) {
  const test::TempFolder dir;
  ASSERT_EQ(synod_run({"quantize", kGemma, (dir / "m.gguf").string(), "q4_0", "--split-max-size", "2M"}).code,
            0);
  std::string first;
  for (const std::string& file : dir.files()) {
    if (file.starts_with("m-00001-of-") && file.ends_with(".gguf")) first = (dir / file).string();
  }
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(synod_run({"run", first, "-q", "-p", "Quote Genesis 1:1."}).out,
            "In the beginning God created the heaven and the earth.\n");
}

TEST(QuantizeCli, InspectPredictsTheDecodeRateOfMixesWithoutWeights) {
  const auto inspect = [](const std::string& config, const std::string& type) {
    const ProcessResult r = synod_run(
        {"inspect", kData + "configs/" + config + ".json", "--type", type, "--json", "--bandwidth", "25"});
    EXPECT_EQ(r.code, 0) << r.err;
    return nlohmann::json::parse(r.out);
  };
  const auto gemma = inspect("gemma4-26b-a4b", "q4_k_m");
  // The published mix: 16.78 GB, 2.593 GB read per token.
  EXPECT_NEAR(gemma["plan"]["weights"].get<double>() / 1e9, 16.78, 0.02);
  EXPECT_NEAR(gemma["plan"]["bytes_per_token"].get<double>() / 1e9, 2.593, 0.01);
  EXPECT_NEAR(gemma["plan"]["decode_ceiling"].get<double>(), 9.64, 0.05);
  const auto small = inspect("gemma4-26b-a4b", "synod_g4_q4");
  EXPECT_LT(small["plan"]["bytes_per_token"], gemma["plan"]["bytes_per_token"]);
  EXPECT_LT(small["plan"]["weights"], gemma["plan"]["weights"]);
  const auto v4 = inspect("deepseek4-flash", "synod_v4_q2");
  EXPECT_LT(v4["plan"]["bytes_per_token"].get<double>(), 6.5e9);
  double bytes = 0;
  for (const auto& t : v4["plan"]["tensors"]) bytes += t["bytes"].get<double>();
  EXPECT_EQ(bytes, v4["plan"]["weights"].get<double>());
  const ProcessResult file = synod_run({"inspect", kGemma, "--plan", "--bandwidth", "50"});
  EXPECT_EQ(file.code, 0);
  EXPECT_NE(file.out.find("tokens/s"), std::string::npos) << file.out;
}

}  // namespace
}  // namespace synod
