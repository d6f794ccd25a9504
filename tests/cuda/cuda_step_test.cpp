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

// A call that names nothing of the host's but its batch, tables and outputs, and issues its ops on demand.
class CudaReplay : public CudaSteps {
 protected:
  struct Call {
    std::vector<int32_t> ids, positions, rows, greedy;
    std::vector<int64_t> row_start{0}, past;
    std::vector<std::byte*> pages;
    std::vector<std::vector<RowTable>> tables;
    BatchView batch;
  };

  std::unique_ptr<Call> call(int64_t n_sequences, int64_t past, int32_t id, int64_t n_pages = 1) {
    auto c = std::make_unique<Call>();
    for (int64_t s = 0; s < n_sequences; ++s) {
      c->ids.push_back(id);
      c->positions.push_back(static_cast<int32_t>(past));
      c->rows.push_back(static_cast<int32_t>(s));
      c->greedy.push_back(-1);
      c->row_start.push_back(s + 1);
      c->past.push_back(past);
    }
    c->pages.assign(static_cast<size_t>(n_pages), cache_.data() + 16 * past);
    c->tables.assign(2, std::vector<RowTable>(static_cast<size_t>(n_sequences), RowTable{c->pages}));
    c->batch = {
        .ids = tensor(c->ids), .positions = tensor(c->positions), .row_start = c->row_start, .past = c->past};
    return c;
  }

  static Tensor tensor(std::vector<int32_t>& values) {
    return Tensor::contiguous(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
  }

  bool replay(Call& c, uint64_t kind = 0) {
    return backend_.replay({.model = this,
                            .kind = kind,
                            .batch = &c.batch,
                            .tables = c.tables,
                            .operands = {tensor(c.rows), tensor(c.greedy), Tensor{}}});
  }

  void issue(Call& c) {
    const int64_t n = c.batch.n_tokens();
    const Tensor x = Tensor::contiguous(memory_.data(), DType::kF32, {n, 64});
    const Tensor y = Tensor::contiguous(memory_.data() + 16384, DType::kF32, {n, 64});
    const Tensor freqs = Tensor::contiguous(memory_.data() + 32768, DType::kF32, {32});
    const CacheRows rows{
        .name = "rows", .row_dim = 64, .row_bytes = 256, .rows_per_page = 256, .sequences = c.tables[1]};
    backend_(Rope{.x = x, .positions = c.batch.positions, .freqs = freqs});
    backend_(CacheWrite{.rows = rows, .x = x, .batch = &c.batch});
    backend_(GatherRows{.out = y, .x = x, .rows = tensor(c.rows)});
    backend_(ArgMax{.out = tensor(c.greedy), .x = y});
  }

  // Runs the call; whether its ops were needed.
  bool issues(Call& c, uint64_t kind = 0) {
    const bool needed = !replay(c, kind);
    if (needed) issue(c);
    backend_.join();
    return needed;
  }

  // Times the value is among what the last step uploaded.
  template <typename T>
  int64_t uploaded(T value) const {
    int64_t n = 0;
    for (size_t at = 0; at + sizeof(T) <= device_->uploaded.size(); at += sizeof(T)) {
      n += std::memcmp(&device_->uploaded[at], &value, sizeof(T)) == 0 ? 1 : 0;
    }
    return n;
  }
};

TEST_F(CudaReplay, ACallOfTheSameKindNeedsNoOps) {
  const auto first = call(2, 1234, 0);
  EXPECT_TRUE(issues(*first));
  const auto second = call(2, 1235, 0);
  EXPECT_FALSE(issues(*second));
  // The position as operand and in the batch's arrays, there as the past, too.
  EXPECT_EQ(uploaded<int32_t>(1234), 0);
  EXPECT_EQ(uploaded<int32_t>(1235), 2 * 3);
  EXPECT_EQ(uploaded<std::byte*>(second->pages[0]), 2);
  EXPECT_EQ(uploaded<std::byte*>(first->pages[0]), 0);
  // Its results go where this call wants them.
  EXPECT_EQ(first->greedy[0], second->greedy[0]);
  second->greedy[0] = -1;
  const auto third = call(2, 1236, 0);
  EXPECT_FALSE(issues(*third));
  EXPECT_EQ(second->greedy[0], -1);
  EXPECT_NE(third->greedy[0], -1);
}

TEST_F(CudaReplay, OtherShapesKindsAndGridsNeedTheirOps) {
  const auto issue_after = [&](Call& c, uint64_t kind = 0) {
    const auto first = call(1, 100, 0);
    static_cast<void>(issues(*first));
    return issues(c, kind);
  };
  EXPECT_FALSE(issue_after(*call(1, 101, 0)));
  EXPECT_TRUE(issue_after(*call(1, 101, 0), 1));
  EXPECT_TRUE(issue_after(*call(2, 101, 0)));
  EXPECT_TRUE(issue_after(*call(1, 200, 0)));     // past a power of two
  EXPECT_TRUE(issue_after(*call(1, 101, 0, 9)));  // a longer table
}

TEST_F(CudaReplay, StepsThatWereNotAnnouncedOrFailedAreNotRepeated) {
  const auto a = call(1, 5, 0);
  EXPECT_TRUE(issues(*a));
  step({});  // unannounced, of another kind
  EXPECT_TRUE(issues(*a));
  EXPECT_FALSE(issues(*a));
  EXPECT_TRUE(replay(*a));
  static_cast<void>(backend_.take_status());  // dropped before it ran
  EXPECT_TRUE(issues(*a));
  backend_.place_all({});
  EXPECT_TRUE(issues(*a));
  EXPECT_FALSE(issues(*a));
}

TEST_F(CudaReplay, OtherMemoryOfTheHostForbidsIt) {
  const auto a = call(1, 5, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(replay(*a));
    issue(*a);
    std::vector<float> own(64, 1.0F);
    const Tensor x = Tensor::contiguous(memory_.data(), DType::kF32, {1, 64});
    backend_(Add{.out = x, .a = x, .b = Tensor::contiguous(own.data(), DType::kF32, {1, 64})});
    backend_.join();
  }
}

// Ops that stop being neighbours would lose their fusion without a wrong result.
TEST(CudaPlans, ATokenTakesFewLaunchesPerLayer) {
  const std::filesystem::path path =
      std::filesystem::path(SYNOD_SOURCE_DIR) / "models" / "deepseek4-mini-q8_0.gguf";
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
