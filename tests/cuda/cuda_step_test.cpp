// Which steps replay which plan, over a device in host memory: no GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "cuda/cuda_backend.h"
#include "engine/dry_steps.h"
#include "formats/checkpoint.h"
#include "host_device.h"
#include "models/run_model.h"
#include "ops/operands.h"

namespace synod::testing {
namespace {

// A backend with what a step of two ops needs. Values that steps vary are parameters of step().
class CudaSteps : public ::testing::Test {
 protected:
  struct Variation {
    int64_t n_tokens = 1;  // sequences of one token each
    int64_t past = 5;
    int64_t n_pages = 1;
    int64_t window = 0;
    int64_t q_offset = 0;  // values
    bool with_weight = false;
  };

  // Runs a step; true when it built no plan: the plan of an equal step was replayed.
  bool replays(const Variation& v) {
    const int before = device_->captures + device_->replays;
    step(v);
    return device_->captures + device_->replays > before;
  }

  void step(const Variation& v) {
    std::vector<std::pair<int64_t, int64_t>> sequences(static_cast<size_t>(v.n_tokens), {v.past, 1});
    const Batch batch(sequences);
    std::vector<std::byte*> pages(static_cast<size_t>(v.n_pages), cache_.data());
    const std::vector<RowTable> tables(static_cast<size_t>(v.n_tokens), RowTable{pages});
    const CacheRows rows{
        .name = "rows", .row_dim = 64, .row_bytes = 256, .rows_per_page = 256, .sequences = tables};
    const auto at = [&](int64_t offset) {
      return Tensor::contiguous(memory_.data() + 4 * offset, DType::kF32, {v.n_tokens, 64});
    };
    const Tensor x = at(0), q = at(4096 + v.q_offset), o = at(8192);
    input_ = Tensor::contiguous(values_.data(), DType::kF32, {v.n_tokens, 64});
    backend_(Add{.out = x, .a = input_, .b = q});
    backend_(RmsNorm{.out = x, .x = x, .weight = v.with_weight ? norm_ : Tensor{}, .eps = 1e-6F});
    backend_(CacheWrite{.rows = rows, .x = x, .batch = batch.view()});
    backend_(Attention{.out = o.reshape({v.n_tokens, 2, 32}),
                       .q = q.reshape({v.n_tokens, 2, 32}),
                       .k = rows,
                       .v = rows,
                       .batch = batch.view(),
                       .n_kv_heads = 2,
                       .window = v.window});
    backend_.join();
  }

  HostDevice* device_ = new HostDevice;
  cuda::CudaBackend backend_{std::unique_ptr<cuda::Device>(device_), {}};
  Buffer memory_ = backend_.allocate(1 << 16), cache_ = backend_.allocate(1 << 16);
  Tensor norm_ = Tensor::contiguous(memory_.data() + (3 << 14), DType::kF32, {64});
  std::vector<float> values_ = std::vector<float>(64 * 64, 1.0F);
  Tensor input_;
};

TEST_F(CudaSteps, EqualStepsReplayOnePlanWithTwoCopies) {
  EXPECT_FALSE(replays({}));
  EXPECT_TRUE(replays({}));
  const int launches = device_->launches, copies = device_->copies;
  EXPECT_TRUE(replays({.past = 6}));  // same grids
  EXPECT_EQ(device_->launches, launches);
  EXPECT_EQ(device_->copies, copies + 2);
}

TEST_F(CudaSteps, AnyDifferenceGetsAnotherPlan) {
  const Variation variations[] = {{.n_tokens = 2}, {.past = 100},    {.n_pages = 9},
                                  {.window = 4},   {.q_offset = 64}, {.with_weight = true}};
  for (const Variation& v : variations) {
    step({});
    EXPECT_FALSE(replays(v));
  }
}

TEST_F(CudaSteps, EqualStepsUploadWhatTheHostChanged) {
  step({}), step({});
  values_[17] = 42.5F;
  EXPECT_TRUE(replays({}));
  std::vector<float> uploaded(device_->uploaded.size() / sizeof(float));
  std::memcpy(uploaded.data(), device_->uploaded.data(), uploaded.size() * sizeof(float));
  EXPECT_EQ(std::ranges::count(uploaded, 42.5F), 1);
}

TEST_F(CudaSteps, MemoryThatComesAndGoesChangesNoPlan) {
  step({}), step({});
  Buffer more = backend_.allocate(4096);
  EXPECT_TRUE(replays({}));
  more = {};
  EXPECT_TRUE(replays({}));
}

TEST_F(CudaSteps, AStepThatFailedMidwayNeverRuns) {
  step({}), step({});
  const Tensor x = Tensor::contiguous(memory_.data(), DType::kF32, {1, 64});
  backend_(Add{.out = x, .a = x, .b = x});
  static_cast<void>(backend_.take_status());
  const int before = device_->launches + device_->replays;
  backend_.join();
  EXPECT_EQ(device_->launches + device_->replays, before);
  step({});
  EXPECT_TRUE(replays({}));
}

TEST_F(CudaSteps, NewWeightsDropThePlans) {
  step({}), step({});
  backend_.place_all({});
  EXPECT_FALSE(replays({}));
}

// Ops that stop being neighbours would lose their fusion without a wrong result.
TEST(CudaPlans, ATokenTakesFewLaunchesPerLayer) {
  const std::filesystem::path path =
      std::filesystem::path(SYNOD_SOURCE_DIR) / "models" / "deepseek4-mini-q8_0.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  const Checkpoint checkpoint = Checkpoint::open(path);
  const auto model = load_model(checkpoint, {});
  auto* device = new HostDevice;
  cuda::CudaBackend backend(std::unique_ptr<cuda::Device>(device), {.graphs = false});
  cuda::WeightCollector collector;
  dry_steps(*model, collector);
  backend.place_all(collector.weights());
  SequenceRunner runner(*model, backend);
  runner.step(std::vector<int32_t>(43, 1), nullptr);
  device->launches = 0;
  runner.step(std::vector<int32_t>(1, 1), nullptr);  // closes a block of four
  constexpr int64_t kPerLayer = 21, kOthers = 10;
  EXPECT_LE(device->launches, kPerLayer * model->info().n_layers + kOthers);
}

}  // namespace
}  // namespace synod::testing
