// Whole models on the device: recorded logits, cuts of the prompt, batches.
#include <filesystem>

#include "cuda_testing.h"
#include "engine/dry_steps.h"
#include "formats/checkpoint.h"
#include "models/run_model.h"

namespace synod::testing {
namespace {

namespace fs = std::filesystem;

struct OnDevice {
  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
  explicit OnDevice(const fs::path& path, const ModelOptions& options = {})
      : checkpoint(Checkpoint::open(path)), model(load_model(checkpoint, options)) {
    cuda::WeightCollector collector;
    dry_steps(*model, collector);
    gpu()->place_all(collector.weights());
  }
  ~OnDevice() { gpu()->place_all({}); }
};

std::vector<fs::path> fixtures() {
  std::vector<fs::path> found;
  for (const char* root : {"tests/data/checkpoints", "../shared/fixtures/checkpoints"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(fs::path(SYNOD_SOURCE_DIR) / root, ignored)) {
      if (fs::exists(entry.path() / "expected.safetensors")) found.push_back(entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(CudaModels, RecordedLogitsAndCutsOfThePrompt) {
  SYNOD_NEED_GPU();
  const std::vector<fs::path> paths = fixtures();
  if (paths.empty()) GTEST_SKIP() << "no recorded checkpoints";
  for (const fs::path& path : paths) {
    SCOPED_TRACE(path.string());
    try {
      const OnDevice loaded(path);
      const Expected expected = load_expected(path / "expected.safetensors");
      const Output whole = run_model(*loaded.model, *gpu(), expected.ids, {}, false);
      const Difference d = compare(whole, expected);
      const std::vector<int64_t> single{1}, cuts{5, 1, 7, 3};
      const Output by_one = run_model(*loaded.model, *gpu(), expected.ids, single, false);
      const Output by_cuts = run_model(*loaded.model, *gpu(), expected.ids, cuts, false);
      // Calls of up to kDecodeTokens rows are one class; longer ones another, with a bound between them.
      const bool one_class = static_cast<int64_t>(expected.ids.size()) <= cuda::kDecodeTokens;
      const float between = max_abs_difference(by_one.logits, whole.logits);
      std::printf("  %-22s rows %3d  |diff| %.2e  arg-max misses %d  single tokens %s  whole %s (%.1e)\n",
                  path.filename().c_str(), static_cast<int>(d.rows), static_cast<double>(d.logits),
                  static_cast<int>(d.arg_max_mismatches),
                  same_bits(by_one.logits, by_cuts.logits) ? "equal" : "DIFFER",
                  same_bits(by_one.logits, whole.logits) ? "equal" : "differs", static_cast<double>(between));
      EXPECT_LE(d.logits, 2e-3F);
      EXPECT_EQ(d.arg_max_mismatches, 0);
      EXPECT_TRUE(same_bits(by_one.logits, by_cuts.logits));
      if (one_class) {
        EXPECT_TRUE(same_bits(by_one.logits, whole.logits));
      }
      EXPECT_LE(between, 4e-3F);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(CudaModels, DemonstrationModelsAgreeWithTheReference) {
  SYNOD_NEED_GPU();
  for (const char* file : {"gemma4-mini-q8_0.gguf", "deepseek4-mini-q8_0.gguf"}) {
    const fs::path path = fs::path(SYNOD_SOURCE_DIR) / "models" / file;
    if (!fs::exists(path)) GTEST_SKIP() << "no " << file;
    for (const Profile profile : {Profile::kM, Profile::kQ}) {
      const OnDevice loaded(path, {.profile = profile});
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < 48; ++i)
        ids.push_back((i * 977 + 13) % static_cast<int32_t>(loaded.model->info().vocab_size));
      RefBackend ref;
      const Output want = run_model(*loaded.model, ref, ids, {}, false);
      const std::vector<int64_t> single{1};
      const Output got = run_model(*loaded.model, *gpu(), ids, {}, false);
      const Output by_one = run_model(*loaded.model, *gpu(), ids, single, false);
      // Mean KL divergence of the device's distribution from the reference's.
      const auto vocab = static_cast<size_t>(loaded.model->info().vocab_size);
      double kl = 0.0;
      for (size_t r = 0; r < ids.size(); ++r) {
        const auto log_sum = [&](const Output& o) {
          double top = -INFINITY, sum = 0.0;
          for (size_t v = 0; v < vocab; ++v)
            top = std::max(top, static_cast<double>(o.logits[r * vocab + v]));
          for (size_t v = 0; v < vocab; ++v) sum += std::exp(o.logits[r * vocab + v] - top);
          return top + std::log(sum);
        };
        const double a = log_sum(want), b = log_sum(got);
        for (size_t v = 0; v < vocab; ++v) {
          const double p = want.logits[r * vocab + v] - a, q = got.logits[r * vocab + v] - b;
          kl += std::exp(p) * (p - q);
        }
      }
      kl /= static_cast<double>(ids.size());
      std::printf("  %-26s profile %c  |diff| %.2e  KL %.2e  cuts %s\n", file,
                  profile == Profile::kM ? 'm' : 'q',
                  static_cast<double>(max_abs_difference(got.logits, want.logits)), kl,
                  same_bits(got.logits, by_one.logits) ? "equal" : "DIFFER");
      // Profile Q rounds activations to small floats: an error of 1e-5 before a rounding point becomes a step
      // of the grid, and may choose another row, in any implementation that does not repeat every sum bit for
      // bit.
      EXPECT_LE(kl, loaded.model->info().architecture == "deepseek4" && profile == Profile::kQ ? 2e-2 : 1e-3);
      EXPECT_TRUE(same_bits(got.logits, by_one.logits));
    }
  }
}

// Sequences of different lengths decode together as they do alone.
TEST(CudaModels, BatchesDoNotChangeBits) {
  SYNOD_NEED_GPU();
  for (const char* file : {"gemma4-mini-q8_0.gguf", "deepseek4-mini-q8_0.gguf"}) {
    const fs::path path = fs::path(SYNOD_SOURCE_DIR) / "models" / file;
    if (!fs::exists(path)) GTEST_SKIP() << "no " << file;
    const OnDevice loaded(path);
    const int64_t vocab = loaded.model->info().vocab_size;
    const auto id_of = [&](int64_t s, int64_t i) {
      return static_cast<int32_t>((s * 131 + i * 17 + 5) % vocab);
    };
    constexpr int64_t kSteps = 20, kSequences = 5;
    // Alone.
    std::vector<std::vector<float>> alone;
    for (int64_t s = 0; s < kSequences; ++s) {
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < kSteps + 3 * s; ++i) ids.push_back(id_of(s, i));
      const std::vector<int64_t> cuts{3 * s + 1, 1};
      alone.push_back(run_model(*loaded.model, *gpu(), ids, cuts, false).logits);
    }
    // Together: prompts of 3 s + 1 tokens in one ragged call, then one token each.
    KvCache cache(loaded.model->cache_spec(), [](int64_t n) { return gpu()->allocate(n); });
    std::vector<SequenceId> sequences;
    for (int64_t s = 0; s < kSequences; ++s) sequences.push_back(cache.create());
    bool equal = true;
    for (int64_t step = 0; step < kSteps; ++step) {
      std::vector<int32_t> ids, positions;
      std::vector<int64_t> row_start{0}, past;
      for (int64_t s = 0; s < kSequences; ++s) {
        const int64_t begin = step == 0 ? 0 : 3 * s + step, n = step == 0 ? 3 * s + 1 : 1;
        past.push_back(begin);
        for (int64_t i = begin; i < begin + n; ++i)
          ids.push_back(id_of(s, i)), positions.push_back(static_cast<int32_t>(i));
        row_start.push_back(static_cast<int64_t>(ids.size()));
        cache.reserve(sequences[static_cast<size_t>(s)], n);
      }
      std::vector<float> logits(ids.size() * static_cast<size_t>(vocab));
      const BatchView batch{ids_tensor(ids), ids_tensor(positions), row_start, past};
      ForwardRequest request;
      request.logits =
          Tensor::contiguous(logits.data(), DType::kF32, {static_cast<int64_t>(ids.size()), vocab});
      loaded.model->forward(batch, cache.view(sequences), *gpu(), request);
      gpu()->join();
      require_ok(*gpu());
      for (int64_t s = 0; s < kSequences; ++s) {
        const auto i = static_cast<size_t>(s);
        cache.commit(sequences[i], row_start[i + 1] - row_start[i]);
        const size_t n = static_cast<size_t>((row_start[i + 1] - row_start[i]) * vocab);
        equal = equal && std::memcmp(logits.data() + row_start[i] * vocab, alone[i].data() + past[i] * vocab,
                                     n * 4) == 0;
      }
    }
    std::printf("  %-26s batch of %d %s\n", file, static_cast<int>(kSequences), equal ? "equal" : "DIFFERS");
    EXPECT_TRUE(equal) << file;
  }
}

}  // namespace
}  // namespace synod::testing
