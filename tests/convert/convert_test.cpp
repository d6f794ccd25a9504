// Whole conversions: what comes out, whatever went in, and what is left when it goes wrong.
#include "convert/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "convert/receipt.h"
#include "convert/sha256.h"
#include "convert/tensor_source.h"
#include "engine/session.h"
#include "quant/codec.h"
#include "quant/encode.h"
#include "ref/ref_backend.h"
#include "temp_folder.h"

namespace synod {
namespace {

const std::string kCheckpoints = SYNOD_SOURCE_DIR "/tests/data/checkpoints/";
const std::string kModels = SYNOD_SOURCE_DIR "/models/";

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> logits_of(const std::filesystem::path& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const auto model = load_model(checkpoint, {});
  RefBackend ref;
  Session session(*model, ref);
  std::vector<int32_t> ids;
  for (int i = 0; i < 12; ++i) ids.push_back((i * 37 + 5) % static_cast<int>(model->info().vocab_size));
  return session.logits(ids, Session::Rows::kAll);
}

double nmse(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double(got[i]) - double(want[i]), 2);
    power += std::pow(double(want[i]), 2);
  }
  return error / power;
}

class Convert : public ::testing::Test {
 protected:
  void SetUp() override { set_log_level(LogLevel::kError); }
  ConvertReport run(const std::filesystem::path& from, const std::string& to, ConvertOptions options) {
    return convert(Checkpoint::open(from), dir_ / to, options);
  }
  // The temporary files of an unfinished output have its name as a prefix.
  std::vector<std::string> left() const { return dir_.files(); }
  test::TempFolder dir_;
};

// Every matrix that is quantized from f32 values by hand must come out of convert with the same bytes.
TEST_F(Convert, WritesWhatTheEncodersMakeOfEveryRow) {
  run(kCheckpoints + "gemma4-moe-tiny", "f32.gguf", {.type = "f32"});
  const Checkpoint source = Checkpoint::open(dir_ / "f32.gguf");
  convert(source, dir_ / "q.gguf", {.type = "q5_1", .n_threads = 3});
  const Checkpoint result = Checkpoint::open(dir_ / "q.gguf");
  ASSERT_EQ(source.tensors().size(), result.tensors().size());
  int64_t n_encoded = 0;
  for (const auto& [name, t] : source.tensors()) {
    const Tensor* q = result.find(name);
    ASSERT_NE(q, nullptr) << name;
    std::vector<std::byte> want(static_cast<size_t>(q->bytes()));
    for (int64_t r = 0; r < t.rows(); ++r) {
      std::vector<float> row(static_cast<size_t>(t.inner()));
      decode(t.type, t.data + r * row_bytes(t.type, t.inner()), t.inner(), row.data());
      if (t.type == q->type) {
        std::memcpy(want.data() + r * row_bytes(t.type, t.inner()), t.data + r * row_bytes(t.type, t.inner()),
                    static_cast<size_t>(row_bytes(t.type, t.inner())));
      } else {
        encode_row(q->type, row, {}, want.data() + r * row_bytes(q->type, t.inner()));
      }
    }
    n_encoded += t.type != q->type ? 1 : 0;
    EXPECT_EQ(std::memcmp(want.data(), q->data, want.size()), 0) << name;
  }
  EXPECT_GT(n_encoded, 10);
}

TEST_F(Convert, TheFileDoesNotDependOnThreadsAndReceiptsVerify) {
  const std::string model = kModels + "gemma4-mini-q8_0.gguf";
  run(model, "one.gguf", {.type = "q4_k_m", .n_threads = 1, .version = "9.9"});
  run(model, "many.gguf", {.type = "q4_k_m", .n_threads = 7});
  EXPECT_TRUE(bytes_of_file(dir_ / "one.gguf") == bytes_of_file(dir_ / "many.gguf"));
  const auto receipt = nlohmann::json::parse(bytes_of_file(dir_ / "one.gguf.receipt.json"));
  EXPECT_EQ(receipt["program"], "synod 9.9");
  EXPECT_EQ(receipt["options"]["type"], "q4_k_m");
  EXPECT_EQ(receipt["inputs"][0]["sha256"], sha256_of_file(model));
  EXPECT_EQ(receipt["outputs"][0]["sha256"], sha256_of_file(dir_ / "one.gguf"));
  EXPECT_EQ(receipt["outputs"][0]["bytes"], std::filesystem::file_size(dir_ / "one.gguf"));
  EXPECT_EQ(left(), (std::vector<std::string>{"many.gguf", "many.gguf.receipt.json", "one.gguf",
                                              "one.gguf.receipt.json"}));
}

TEST_F(Convert, DeepSeekFp4ExpertsStayBitExactAndTheRestIsWithinQ8) {
  const std::string official = kCheckpoints + "deepseek4-official";
  run(official, "mx.gguf", {.type = "mxfp4_moe"});
  run(official, "exact.gguf", {.type = "mxfp4_bf16"});
  const Checkpoint from = Checkpoint::open(official);
  const TensorSource source(from);
  const Checkpoint to = Checkpoint::open(dir_ / "mx.gguf");
  int64_t n_experts = 0;
  for (const SourceTensor& t : source.tensors()) {
    if (t.parts.empty() || t.parts[0].storage != Storage::kFp4) continue;
    const Tensor* q = to.find(t.name);
    ASSERT_EQ(q->type, DType::kMXFP4) << t.name;
    const std::byte* at = q->data;
    for (const Matrix& m : t.parts) {
      ++n_experts;
      std::vector<float> want(static_cast<size_t>(m.n_in)), got(want.size());
      for (int64_t r = 0; r < m.n_out; ++r, at += row_bytes(DType::kMXFP4, m.n_in)) {
        decode_row(m, r, want.data());
        decode(DType::kMXFP4, at, m.n_in, got.data());
        ASSERT_EQ(got, want) << t.name << " row " << r;
        for (int64_t b = 0; b < m.n_in / 32; ++b) {  // the scales are kept too, not only the values
          ASSERT_EQ(at[b * 17], m.scales[r * m.scale_stride + b]);
        }
      }
    }
  }
  EXPECT_GT(n_experts, 10);
  const std::vector<float> want = logits_of(official);
  EXPECT_TRUE(logits_of(dir_ / "exact.gguf") == want) << "FP8 fits bf16 exactly";
  // Everything else is within half a Q8_0 step, 1/254 of the block's largest value, plus the rounding of the
  // scale.
  for (const SourceTensor& t : source.tensors()) {
    const Tensor* q = to.find(t.name);
    if (q->type != DType::kQ8_0) continue;
    int64_t at = 0;
    for (const Matrix& m : t.parts) {
      std::vector<float> from_row(static_cast<size_t>(m.n_in)), to_row(from_row.size());
      for (int64_t r = 0; r < m.n_out; ++r, at += row_bytes(q->type, m.n_in)) {
        decode_row(m, r, from_row.data());
        decode(q->type, q->data + at, m.n_in, to_row.data());
        for (size_t b = 0; b < from_row.size(); b += 32) {
          float largest = 0, error = 0;
          for (size_t i = b; i < b + 32; ++i) {
            largest = std::max(largest, std::abs(from_row[i]));
            error = std::max(error, std::abs(from_row[i] - to_row[i]));
          }
          ASSERT_LE(error, largest * (1.0F / 254 + 1.0F / 2048)) << t.name;
        }
      }
    }
  }
  // Random weights choose experts and rows by hairs: some choices flip, which a trained model's would not.
  const double error = nmse(logits_of(dir_ / "mx.gguf"), want);
  std::printf("NMSE of MXFP4 + Q8_0 logits: %.2e\n", error);
  EXPECT_LT(error, 1e-2);
  EXPECT_GT(error, 0.0);
}

TEST_F(Convert, EveryKindOfInputGivesEveryKindOfMix) {
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    const std::vector<float> want = logits_of(entry.path());
    // A fine type must come out close whatever the source; coarse ones must work. (Random weights: choices
    // flip.)
    for (const auto& [type, bound] :
         std::vector<std::pair<const char*, double>>{{"q8_0", 5e-2}, {"q4_k_m", 0.5}, {"iq3_s", 1.5}}) {
      run(entry.path(), "out.gguf", {.type = type, .receipt = false});
      const double error = nmse(logits_of(dir_ / "out.gguf"), want);
      EXPECT_LT(error, bound) << entry.path().filename() << " " << type;
    }
  }
}

TEST_F(Convert, CopiesAllMetadataOfAGgufFile) {
  const std::string model = kModels + "deepseek4-mini-q8_0.gguf";
  run(model, "out.gguf", {.type = "q5_k_m"});
  const Checkpoint from = Checkpoint::open(model), to = Checkpoint::open(dir_ / "out.gguf");
  for (const auto& [key, value] : from.gguf().entries()) {
    const GgufValue* copy = to.gguf().find(key);
    ASSERT_NE(copy, nullptr) << key;
    if (key == "general.file_type") continue;
    ASSERT_EQ(copy->value.index(), value.value.index()) << key;
    if (const auto* array = std::get_if<GgufValue::Array>(&value.value)) {
      EXPECT_TRUE(std::get<GgufValue::Array>(copy->value).bytes == array->bytes) << key;
    } else if (const auto* text = std::get_if<std::string>(&value.value)) {
      EXPECT_EQ(std::get<std::string>(copy->value), *text) << key;
    } else if (const auto* strings = std::get_if<GgufValue::Strings>(&value.value)) {
      EXPECT_TRUE(std::get<GgufValue::Strings>(copy->value) == *strings) << key;
    }
  }
  EXPECT_EQ(to.gguf().get_int("general.file_type"), 17);
}

TEST_F(Convert, SplitFilesOpenAsOneModelWithTheSameTensors) {
  const std::string model = kModels + "gemma4-mini-q8_0.gguf";
  run(model, "whole.gguf", {.type = "q4_0"});
  const ConvertReport report = run(model, "parts.gguf", {.type = "q4_0", .split_max_bytes = 1 << 20});
  ASSERT_GT(report.files.size(), 3U);
  EXPECT_EQ(report.files[0].filename().string(),
            fmt::format("parts-00001-of-{:05d}.gguf", report.files.size()));
  const Checkpoint whole = Checkpoint::open(dir_ / "whole.gguf"), parts = Checkpoint::open(report.files[0]);
  ASSERT_EQ(whole.tensors().size(), parts.tensors().size());
  for (const auto& [name, t] : whole.tensors()) {
    const Tensor* other = parts.find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(std::memcmp(t.data, other->data, static_cast<size_t>(t.bytes())), 0) << name;
  }
  EXPECT_EQ(files_of(parts).size(), report.files.size());
  // A split source becomes one file again, without the keys of a split.
  run(report.files[0], "again.gguf", {.type = "q4_0"});
  EXPECT_TRUE(bytes_of_file(dir_ / "again.gguf") == bytes_of_file(dir_ / "whole.gguf"));
}

struct AddedTensor {
  std::string name;
  DType type;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// Copies a GGUF model, with the bytes of one tensor changed or a tensor added.
void rewrite(const std::filesystem::path& from, const std::filesystem::path& to, std::string_view name,
             const std::function<void(std::span<std::byte>)>& change,
             const std::vector<AddedTensor>& added = {}) {
  const Checkpoint source = Checkpoint::open(from);
  GgufWriter out(to);
  for (const auto& [key, v] : source.gguf().entries()) out.metadata().set(key, v);
  for (const auto& [n, t] : source.tensors()) {
    out.declare(std::string(n), t.type, {t.shape.begin(), t.shape.begin() + t.rank});
  }
  for (const AddedTensor& t : added) out.declare(t.name, t.type, t.shape);
  for (const auto& [n, t] : source.tensors()) {
    std::vector<std::byte> bytes(t.data, t.data + t.bytes());
    if (n == name) change(bytes);
    out.write(bytes);
  }
  for (const AddedTensor& t : added) out.write(t.bytes);
  out.finish();
}

TEST_F(Convert, RefusesValuesThatAreNotFiniteAndLeavesNothing) {
  run(kCheckpoints + "gemma4-dense-tiny", "f32.gguf", {.type = "f32", .receipt = false});
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    rewrite(dir_ / "f32.gguf", dir_ / "bad.gguf", "blk.0.attn_q.weight", [&](std::span<std::byte> bytes) {
      std::memcpy(bytes.data() + bytes.size() / 8 * 4, &value, sizeof(value));
    });
    for (const char* type : {"q8_0", "q4_k_m", "bf16", "iq4_xs"}) {
      try {
        run(dir_ / "bad.gguf", "out.gguf", {.type = type});
        ADD_FAILURE() << type << " took " << value;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
        EXPECT_NE(std::string(error.what()).find("blk.0.attn_q.weight"), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_EQ(left(), (std::vector<std::string>{"bad.gguf", "f32.gguf"}));
}

// What keeps its type is not encoded, but looked at all the same. Draft tensors serve here: the model does
// not read them, so only the conversion can notice.
TEST_F(Convert, RefusesCopiedBlocksWithoutAFiniteScale) {
  const auto refusal = [&](const AddedTensor& added, const char* type) -> std::string {
    rewrite(kModels + "deepseek4-mini-q8_0.gguf", dir_ / "in.gguf", "", {}, {added});
    try {
      run(dir_ / "in.gguf", "out.gguf", {.type = type, .receipt = false});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
      EXPECT_EQ(left(), std::vector<std::string>{"in.gguf"});
      return error.what();
    }
    std::filesystem::remove(dir_ / "out.gguf");
    return "";
  };
  // More than the 4 MiB that are copied at a time: blocks are counted from the tensor's beginning.
  constexpr int64_t kRows = 4400, kColumns = 1024, kBlockBytes = 34, kBad = kRows * kColumns / 32 - 2;
  AddedTensor blocks{"mtp.0.attn_q.weight", DType::kQ8_0, {kRows, kColumns}, {}};
  blocks.bytes.resize(static_cast<size_t>(row_bytes(DType::kQ8_0, kRows * kColumns)));
  EXPECT_EQ(refusal(blocks, "q8_0"), "");
  blocks.bytes[static_cast<size_t>(kBad * kBlockBytes) + 1] = std::byte{0x7e};  // the scale: f16 NaN
  EXPECT_NE(refusal(blocks, "q8_0").find(fmt::format("mtp.0.attn_q.weight: block {} holds", kBad)),
            std::string::npos);
  // Routers keep their f32.
  AddedTensor router{"mtp.0.ffn_gate_inp.weight", DType::kF32, {4, 32}, {}};
  router.bytes.resize(4 * 32 * sizeof(float));
  EXPECT_EQ(refusal(router, "q4_0"), "");
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(router.bytes.data() + 77 * sizeof(float), &infinity, sizeof(infinity));
  EXPECT_NE(refusal(router, "q4_0").find("mtp.0.ffn_gate_inp.weight: value 77 holds"), std::string::npos);
}

TEST_F(Convert, RefusesLowBitMixesWithoutImportanceAndUnknownTypes) {
  for (const char* type : {"iq2_xxs", "iq1_s", "iq1_m", "iq2_m", "q2_k_s", "synod_v4_q2", "q4_k_x"}) {
    try {
      run(kModels + "deepseek4-mini-q8_0.gguf", "out.gguf", {.type = type});
      ADD_FAILURE() << type;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kUsage) << error.what();
    }
  }
  EXPECT_TRUE(left().empty());
}

TEST_F(Convert, StopsWhenAskedAndLeavesNothing) {
  int64_t asked = 0;
  const ConvertReport report = run(kModels + "gemma4-mini-q8_0.gguf", "out.gguf",
                                   {.type = "q4_0", .cancelled = [&] { return ++asked > 20; }});
  EXPECT_TRUE(report.was_cancelled);
  EXPECT_TRUE(left().empty());
}

TEST_F(Convert, DryRunWritesNothingAndCountsTheSameBytes) {
  const std::string model = kModels + "gemma4-mini-q8_0.gguf";
  const ConvertReport plan = run(model, "out.gguf", {.type = "q4_k_m", .dry_run = true});
  EXPECT_TRUE(left().empty());
  EXPECT_EQ(plan.bytes, run(model, "out.gguf", {.type = "q4_k_m"}).bytes);
}

TEST_F(Convert, DoesNotReplaceItsOwnInput) {
  run(kCheckpoints + "gemma4-dense-tiny", "a.gguf", {.type = "f32"});
  const std::string before = bytes_of_file(dir_ / "a.gguf");
  EXPECT_THROW(run(dir_ / "a.gguf", "a.gguf", {.type = "q8_0"}), Error);
  EXPECT_TRUE(bytes_of_file(dir_ / "a.gguf") == before);
}

TEST_F(Convert, FailsWithoutTraceWhereItCannotWrite) {
  try {
    convert(Checkpoint::open(kCheckpoints + "gemma4-dense-tiny"), dir_ / "no/such/folder.gguf", {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kFailure);
    EXPECT_NE(std::string(error.what()).find("folder.gguf"), std::string::npos);
  }
}

}  // namespace
}  // namespace synod
