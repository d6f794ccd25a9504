// The CPU backend against the published logits, and against itself: instruction sets, threads, chunks,
// batches.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "cpu/cpu_backend.h"
#include "engine/engine_testing.h"
#include "models/run_model.h"
#include "ref/ref_backend.h"

namespace synod::testing {
namespace {

const std::filesystem::path kData = SYNOD_SOURCE_DIR "/tests/data";

std::unique_ptr<CpuBackend> cpu(int n_threads, std::string_view isa = {}) {
  return std::make_unique<CpuBackend>(std::make_unique<RefBackend>(),
                                      CpuOptions{.n_threads = n_threads, .isa = isa});
}

std::vector<std::filesystem::path> checkpoints() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(kData / "checkpoints"))
    folders.push_back(entry.path());
  // The large checkpoints are not part of the repository; they run where they lie beside it.
  const std::filesystem::path more = SYNOD_SOURCE_DIR "/../shared/fixtures/checkpoints";
  for (const char* name :
       {"gemma4-moe-k256", "deepseek4-k256", "gemma4-mlx3", "gemma4-mlx6", "gemma4-mlx8"}) {
    if (std::filesystem::exists(more / name)) folders.push_back(more / name);
  }
  std::ranges::sort(folders);
  return folders;
}

TEST(Backends, BothGiveThePublishedLogitsOnEveryCheckpoint) {
  for (const auto& folder : checkpoints()) {
    const Checkpoint checkpoint = Checkpoint::open(folder);
    const auto model = load_model(checkpoint, {});
    const Expected expected = load_expected(folder / "expected.safetensors");
    const auto fast = cpu(2);
    RefBackend ref;
    for (Backend* backend : {static_cast<Backend*>(&ref), static_cast<Backend*>(fast.get())}) {
      const Difference d = compare(run_model(*model, *backend, expected.ids, {}, true), expected);
      print_difference(std::string(backend->name()) + " " + folder.filename().string(), d);
      EXPECT_LE(d.logits, 1e-3F) << folder;
      EXPECT_LE(d.hidden, 1e-3F) << folder;
      EXPECT_EQ(d.arg_max_mismatches, 0) << folder;
    }
  }
}

TEST(Backends, CpuLogitsAreTheSameBitsOverInstructionSetsThreadsAndRandomChunks) {
  struct Variant {
    std::string_view isa;
    int n_threads;
  };
  std::vector<Variant> variants = {{"", 1}, {"", 2}, {"", 3}};
  for (const cpu::KernelTable* table : cpu::available_tables()) variants.push_back({table->name, 2});
  std::mt19937 random(7);
  for (const auto& entry : std::filesystem::directory_iterator(kData / "checkpoints")) {
    const Checkpoint checkpoint = Checkpoint::open(entry.path());
    const auto model = load_model(checkpoint, {});
    const std::vector<int32_t> ids = load_expected(entry.path() / "expected.safetensors").ids;
    const auto reference = cpu(1);
    const std::vector<float> whole = run_model(*model, *reference, ids, {}, false).logits;
    for (const Variant& variant : variants) {
      std::vector<int64_t> chunks;
      for (int i = 0; i < 40; ++i) chunks.push_back(std::uniform_int_distribution<int64_t>(1, 70)(random));
      const auto backend = cpu(variant.n_threads, variant.isa);
      const std::vector<float> cut = run_model(*model, *backend, ids, chunks, false).logits;
      ASSERT_EQ(cut.size(), whole.size());
      ASSERT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)), 0)
          << entry.path() << " " << variant.isa << " threads " << variant.n_threads;
    }
  }
}

// Mean KL divergence of `b` from `a` over all rows, in nats.
double mean_kl(std::span<const float> a, std::span<const float> b, size_t vocab) {
  const auto log_softmax = [&](std::span<const float> row) {
    double largest = -INFINITY, sum = 0;
    for (const float v : row) largest = std::max<double>(largest, v);
    for (const float v : row) sum += std::exp(v - largest);
    std::vector<double> out;
    for (const float v : row) out.push_back(v - largest - std::log(sum));
    return out;
  };
  double total = 0;
  const size_t rows = a.size() / vocab;
  for (size_t r = 0; r < rows; ++r) {
    const auto p = log_softmax(a.subspan(r * vocab, vocab)), q = log_softmax(b.subspan(r * vocab, vocab));
    for (size_t i = 0; i < vocab; ++i) total += std::exp(p[i]) * (p[i] - q[i]);
  }
  return total / static_cast<double>(rows);
}

class BundledModel : public ::testing::TestWithParam<const char*> {
 protected:
  BundledModel()
      : checkpoint_(
            Checkpoint::open(std::string(SYNOD_SOURCE_DIR "/models/") + GetParam() + "-mini-q8_0.gguf")),
        model_(load_model(checkpoint_, {})),
        tokenizer_(load_tokenizer(checkpoint_)),
        golden_(nlohmann::json::parse(
            read_text_file(kData / "golden" / (std::string(GetParam()) + "-mini.json")))) {}

  Checkpoint checkpoint_;
  std::unique_ptr<Model> model_;
  Tokenizer tokenizer_;
  nlohmann::json golden_;
};

// The recorded continuations are those of the bf16 model. Q8_0 keeps them: the smallest margin recorded is
// far above what rounding to 8 bits moves.
TEST_P(BundledModel, RepeatsTheRecordedContinuationsOnBothBackends) {
  for (const bool use_ref : {true, false}) {
    const std::unique_ptr<Backend> backend =
        use_ref ? std::make_unique<RefBackend>() : std::unique_ptr<Backend>(cpu(2));
    for (const auto& entry : golden_) {
      const auto ids = entry["ids"].get<std::vector<int32_t>>();
      const auto greedy = entry["greedy"].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer_.encode(entry["prompt"].get<std::string>(), true), ids);
      Session session(*model_, *backend);
      EXPECT_EQ(greedy_ids(session, ids, static_cast<int64_t>(greedy.size())), greedy)
          << backend->name() << ": " << entry["prompt"];
    }
  }
}

TEST_P(BundledModel, QuantizedActivationsStayWithinAThousandthOfANatOfTheReference) {
  RefBackend ref;
  const auto backend = cpu(2);
  std::vector<float> expected, got;
  for (const auto& entry : golden_) {
    auto ids = entry["ids"].get<std::vector<int32_t>>();
    const auto greedy = entry["greedy"].get<std::vector<int32_t>>();
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    for (auto& [logits, be] :
         {std::pair<std::vector<float>*, Backend*>{&expected, &ref}, {&got, backend.get()}}) {
      const std::vector<float> part = run_model(*model_, *be, ids, {}, false).logits;
      logits->insert(logits->end(), part.begin(), part.end());
    }
  }
  const double kl = mean_kl(expected, got, static_cast<size_t>(model_->info().vocab_size));
  std::printf("%s Q8_0: KL of cpu to ref %.3g nat\n", GetParam(), kl);
  RecordProperty("kl", std::to_string(kl));
  EXPECT_LT(kl, 1e-3);
}

TEST_P(BundledModel, SessionsRollBackAndFailWithoutATrace) {
  const auto backend = cpu(2);
  Session session(*model_, *backend);
  const auto ids = golden_[0]["ids"].get<std::vector<int32_t>>();
  session.warm_up();
  EXPECT_EQ(session.length(), 0);
  const std::vector<float> first = session.logits(ids, Session::Rows::kLast);
  EXPECT_THROW(session.append(std::vector<int32_t>{5, -1}), Error);
  EXPECT_THROW(session.append(std::vector<int32_t>{}), Error);
  EXPECT_EQ(session.length(), static_cast<int64_t>(ids.size()));
  session.append(std::vector<int32_t>{7, 8, 9});
  ASSERT_TRUE(session.truncate(static_cast<int64_t>(ids.size()) - 1));
  EXPECT_EQ(session.logits(std::span(ids).last(1), Session::Rows::kLast), first);
}

INSTANTIATE_TEST_SUITE_P(Families, BundledModel, ::testing::Values("gemma4", "deepseek4"));

}  // namespace
}  // namespace synod::testing
