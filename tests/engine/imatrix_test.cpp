#include "engine/imatrix.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "engine/session.h"
#include "ref/ref_backend.h"
#include "temp_folder.h"

namespace synod {
namespace {

const std::string kCheckpoints = SYNOD_SOURCE_DIR "/tests/data/checkpoints/";

std::vector<int32_t> some_ids(int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((i * 37 + 11) % 100));
  return ids;
}

Imatrix collect(const std::string& name, const ImatrixOptions& options) {
  const Checkpoint checkpoint = Checkpoint::open(kCheckpoints + name);
  const auto model = load_model(checkpoint, {});
  RefBackend ref;
  return collect_imatrix(checkpoint, *model, ref, some_ids(40), 2, options);
}

double total(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum;
}

TEST(Imatrix, NamesTensorsAsGgufFilesDoAndCountsTokens) {
  const Imatrix gemma = collect("gemma4-moe-tiny", {.chunk_tokens = 16});
  EXPECT_EQ(gemma.n_chunks, 2);
  EXPECT_EQ(gemma.chunk_tokens, 16);
  ASSERT_TRUE(gemma.entries.contains("blk.0.attn_q.weight"));
  EXPECT_EQ(gemma.entries.at("blk.0.attn_q.weight").counts, std::vector<double>{32});
  ASSERT_TRUE(gemma.entries.contains("blk.0.ffn_gate_up_exps.weight")) << "GGUF stores gate above up";
  EXPECT_FALSE(gemma.entries.contains("blk.0.ffn_gate_exps.weight"));
  EXPECT_FALSE(gemma.entries.contains("token_embd.weight"));
  const ImatrixEntry& experts = gemma.entries.at("blk.0.ffn_gate_up_exps.weight");
  const Checkpoint checkpoint = Checkpoint::open(kCheckpoints + "gemma4-moe-tiny");
  const ModelInfo info = load_model(checkpoint, {})->info();
  EXPECT_EQ(experts.n_experts, info.n_experts);
  EXPECT_EQ(experts.n_columns, info.d_model);
  EXPECT_EQ(total(experts.counts), 32.0 * double(info.n_experts_used));
  EXPECT_EQ(gemma.entries.at("blk.0.ffn_down_exps.weight").counts, experts.counts);
  // An expert nobody was sent to has seen nothing.
  for (int64_t e = 0; e < experts.n_experts; ++e) {
    double squares = 0;
    for (int64_t i = 0; i < experts.n_columns; ++i)
      squares += experts.sums[static_cast<size_t>(e * experts.n_columns + i)];
    EXPECT_EQ(squares > 0, experts.counts[static_cast<size_t>(e)] > 0) << e;
  }

  const Imatrix deepseek = collect("deepseek4-tiny", {.chunk_tokens = 16, .process_output = true});
  EXPECT_TRUE(deepseek.entries.contains("blk.0.ffn_gate_exps.weight"));
  EXPECT_TRUE(deepseek.entries.contains("blk.0.ffn_up_exps.weight"));
  EXPECT_TRUE(deepseek.entries.contains("output.weight"));
  EXPECT_TRUE(deepseek.entries.contains("blk.0.attn_output_a.weight"));
}

TEST(Imatrix, IsTheSameOnTwoRunsAndAdditiveOverChunks) {
  const Imatrix both = collect("deepseek4-tiny", {.chunk_tokens = 16});
  Imatrix again = collect("deepseek4-tiny", {.chunk_tokens = 16});
  for (const auto& [name, entry] : both.entries) EXPECT_EQ(again.entries.at(name).sums, entry.sums) << name;
  again.merge(both);
  EXPECT_EQ(again.n_chunks, 4);
  for (const auto& [name, entry] : both.entries) {
    const ImatrixEntry& twice = again.entries.at(name);
    for (size_t i = 0; i < entry.sums.size(); ++i) ASSERT_EQ(twice.sums[i], 2 * entry.sums[i]);
    for (size_t i = 0; i < entry.counts.size(); ++i) ASSERT_EQ(twice.counts[i], 2 * entry.counts[i]);
  }
}

TEST(Imatrix, SurvivesTheFile) {
  const test::TempFolder dir;
  Imatrix m = collect("gemma4-moe-tiny", {.chunk_tokens = 16});
  m.datasets = {"a.txt", "b.txt"};
  m.write(dir / "m.gguf");
  const Imatrix read = Imatrix::read(dir / "m.gguf");
  EXPECT_EQ(read.datasets, m.datasets);
  EXPECT_EQ(read.n_chunks, m.n_chunks);
  EXPECT_EQ(read.chunk_tokens, m.chunk_tokens);
  ASSERT_EQ(read.entries.size(), m.entries.size());
  for (const auto& [name, entry] : m.entries) {
    const ImatrixEntry& copy = read.entries.at(name);
    EXPECT_EQ(copy.n_experts, entry.n_experts);
    ASSERT_EQ(copy.n_columns, entry.n_columns);
    EXPECT_EQ(copy.counts, entry.counts);
    for (size_t i = 0; i < entry.sums.size(); ++i)
      ASSERT_EQ(copy.sums[i], double(float(entry.sums[i]))) << name;
  }
  // The form that llama.cpp reads.
  const GgufFile file = GgufFile::open(dir / "m.gguf");
  EXPECT_EQ(file.metadata().get_string("general.type"), "imatrix");
  EXPECT_EQ(file.metadata().get_int("imatrix.chunk_count"), 2);
  EXPECT_EQ(file.metadata().get_int("imatrix.chunk_size"), 16);
  for (const Tensor& t : file.tensors()) {
    EXPECT_TRUE(t.name.ends_with(".in_sum2") || t.name.ends_with(".counts")) << t.name;
    EXPECT_EQ(t.type, DType::kF32);
    EXPECT_EQ(t.rank, 2);
  }
}

TEST(Imatrix, RefusesFilesThatAreNone) {
  const test::TempFolder dir;
  const auto write = [&](const char* type,
                         std::vector<std::pair<std::string, std::vector<int64_t>>> tensors) {
    GgufWriter out(dir / "x.gguf");
    if (*type != 0) out.metadata().set_string("general.type", type);
    for (const auto& [name, shape] : tensors) out.declare(name, DType::kF32, shape);
    for (const auto& [name, shape] : tensors) {
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      const std::vector<float> values(static_cast<size_t>(n), 1.0F);
      out.write(std::as_bytes(std::span(values)));
    }
    out.finish();
  };
  using Tensors = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  const std::vector<std::pair<const char*, Tensors>> bad = {
      {"", {{"a.in_sum2", {1, 4}}, {"a.counts", {1, 1}}}},
      {"model", {{"a.in_sum2", {1, 4}}, {"a.counts", {1, 1}}}},
      {"imatrix", {{"a.in_sum2", {1, 4}}}},
      {"imatrix", {{"a.in_sum2", {2, 4}}, {"a.counts", {3, 1}}}},
      {"imatrix", {{"a.counts", {1, 1}}}},
  };
  for (const auto& [type, tensors] : bad) {
    write(type, tensors);
    try {
      Imatrix::read(dir / "x.gguf");
      ADD_FAILURE() << type;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
    }
  }
  write("imatrix", {{"a.in_sum2", {2, 4}}, {"a.counts", {2, 1}}});
  EXPECT_EQ(Imatrix::read(dir / "x.gguf").entries.at("a").n_experts, 2);
  try {
    Imatrix::read(dir / "missing.gguf");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kNotFound);
  }
  Imatrix a = Imatrix::read(dir / "x.gguf"), b = a;
  b.entries.at("a").n_columns = 3;
  EXPECT_THROW(a.merge(b), Error);
}

TEST(Imatrix, NeedsOneWholeChunk) {
  EXPECT_THROW(collect("gemma4-dense-tiny", {.chunk_tokens = 41}), Error);
  EXPECT_EQ(collect("gemma4-dense-tiny", {.chunk_tokens = 40}).n_chunks, 1);
  EXPECT_EQ(collect("gemma4-dense-tiny", {.chunk_tokens = 10, .max_chunks = 3}).n_chunks, 3);
}

}  // namespace
}  // namespace synod
