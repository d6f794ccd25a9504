// Decode and prefill rates of a model on the device, with the card's measured ceilings.
//   cuda_bench MODEL.gguf [--decode N] [--depths 0,4096] [--batches 1,32] [--prefills 512,4096] [--stages]
//              [--profile]   one decode step of the last batch and depth between profiler marks
#include <cuda_profiler_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_device.h"
#include "engine/dry_steps.h"
#include "engine/forward_call.h"
#include "kv/kv_cache.h"
#include "models/model.h"

namespace synod {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

std::vector<int64_t> numbers(const char* text) {
  std::vector<int64_t> values;
  for (const char* p = text; *p != '\0';
       p = std::strchr(p, ',') == nullptr ? p + std::strlen(p) : std::strchr(p, ',') + 1) {
    values.push_back(std::atoll(p));
  }
  return values;
}

class Runner {
 public:
  Runner(const Model& model, cuda::CudaBackend& be)
      : model_(model), be_(be), cache_(model.cache_spec(), [&be](int64_t n) { return be.allocate(n); }) {}

  void set_batch(int64_t n) {
    for (const SequenceId s : sequences_) cache_.release(s);
    sequences_.clear();
    for (int64_t i = 0; i < n; ++i) sequences_.push_back(cache_.create());
  }
  // n_new tokens for every sequence; greedy next tokens when `choose`.
  std::vector<int32_t> step(int64_t n_new, bool choose, std::vector<int32_t> ids = {}) {
    const auto n_seq = static_cast<int64_t>(sequences_.size());
    std::vector<int32_t> positions, rows, best(sequences_.size());
    std::vector<int64_t> row_start{0}, past;
    const bool random = ids.empty();
    for (int64_t s = 0; s < n_seq; ++s) {
      const int64_t length = cache_.length(sequences_[static_cast<size_t>(s)]);
      past.push_back(length);
      for (int64_t i = 0; i < n_new; ++i) {
        if (random)
          ids.push_back(static_cast<int32_t>((seed_ = seed_ * 1664525 + 1013904223) %
                                             static_cast<uint32_t>(model_.info().vocab_size)));
        positions.push_back(static_cast<int32_t>(length + i));
      }
      row_start.push_back(static_cast<int64_t>(positions.size()));
      rows.push_back(static_cast<int32_t>(positions.size()) - 1);
      cache_.reserve(sequences_[static_cast<size_t>(s)], n_new);
    }
    const auto tensor = [](std::vector<int32_t>& v) {
      return Tensor::contiguous(v.data(), DType::kI32, {static_cast<int64_t>(v.size())});
    };
    const BatchView batch{
        .ids = tensor(ids), .positions = tensor(positions), .row_start = row_start, .past = past};
    ForwardRequest request;
    if (choose) request.rows = tensor(rows), request.greedy = tensor(best);
    const auto start = Clock::now();
    issue_call(model_, batch, cache_.view(sequences_), be_, request);
    issue_seconds += seconds_since(start);
    be_.join();
    require_ok(be_);
    for (const SequenceId s : sequences_) cache_.commit(s, n_new);
    return best;
  }
  double issue_seconds = 0.0;

 private:
  const Model& model_;
  cuda::CudaBackend& be_;
  KvCache cache_;
  std::vector<SequenceId> sequences_;
  uint32_t seed_ = 1;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int run(int argc, char** argv) {
  std::vector<int64_t> depths{0, 4096}, batches{1}, prefills{512, 4096};
  int64_t decode = 64, chunk = 4096;
  bool stages = false;
  bool graphs = true, dependent = true, profile = false;
  for (int i = 2; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--stages")
      stages = true;
    else if (a == "--profile")
      profile = true;
    else if (a == "--no-graphs")
      graphs = false;
    else if (a == "--no-pdl")
      dependent = false;
    else if (a == "--decode")
      decode = std::atoll(argv[++i]);
    else if (a == "--depths")
      depths = numbers(argv[++i]);
    else if (a == "--batches")
      batches = numbers(argv[++i]);
    else if (a == "--prefills")
      prefills = numbers(argv[++i]);
    else if (a == "--chunk")
      chunk = std::atoll(argv[++i]);
  }
  cuda::CudaBackend be(cuda::make_cuda_device({.dependent_launch = dependent}), {.graphs = graphs});
  const Checkpoint checkpoint = Checkpoint::open(argv[1]);
  const auto model = load_model(checkpoint, {});
  cuda::WeightCollector collector;
  dry_steps(*model, collector);
  auto start = Clock::now();
  be.place_all(collector.weights());
  const double bytes = static_cast<double>(be.planned_bytes(collector.weights()));
  std::printf("%s: %s, upload %.1f GB in %.2f s = %.1f GB/s\n", argv[1], be.device_name().c_str(),
              bytes / 1e9, seconds_since(start), bytes / 1e9 / seconds_since(start));
  Runner runner(*model, be);
  const double step_bytes =
      static_cast<double>(model->weights().bytes_per_token(model->info().n_experts_used));
  for (const int64_t b : batches) {
    for (const int64_t depth : depths) {
      runner.set_batch(b);
      for (int64_t done = 0; done < depth;) {
        const int64_t n = std::min(std::max<int64_t>(chunk / b, 1), depth - done);
        runner.step(n, false);
        done += n;
      }
      std::vector<int32_t> ids = runner.step(1, true);
      for (int i = 0; i < 6; ++i) ids = runner.step(1, true, ids);
      runner.issue_seconds = 0.0;
      std::vector<double> times;
      for (int64_t i = 0; i < decode; ++i) {
        start = Clock::now();
        ids = runner.step(1, true, ids);
        times.push_back(seconds_since(start));
      }
      const double t = median(times);
      std::printf(
          "decode batch %lld depth %lld: %.1f t/s  median %.1f us (min %.1f)  host issue %.1f us  weights "
          "%.2f TB/s\n",
          static_cast<long long>(b), static_cast<long long>(depth), static_cast<double>(b) / t, t * 1e6,
          *std::min_element(times.begin(), times.end()) * 1e6,
          runner.issue_seconds / static_cast<double>(decode) * 1e6, step_bytes / t / 1e12);
      std::fflush(stdout);
      if (profile && b == batches.back() && depth == depths.back()) {
        cudaProfilerStart();
        runner.step(1, true, ids);
        cudaProfilerStop();
      }
      if (stages) {
        be.take_stage_times();
        for (int i = 0; i < 3; ++i) ids = runner.step(1, true, ids);
        be.take_stage_times();
        for (int i = 0; i < 5; ++i) ids = runner.step(1, true, ids);
        std::vector<std::pair<std::string, std::pair<double, int64_t>>> parts;
        for (const auto& s : be.take_stage_times()) {
          const std::string part(s.label.part);
          auto it = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.first == part; });
          if (it == parts.end()) it = parts.insert(it, {part, {0.0, 0}});
          it->second.first += s.seconds, it->second.second += s.n_launches;
        }
        for (const auto& [part, v] : parts)
          std::printf("   %-18s %8.1f us  %4lld launches\n", part.c_str(), v.first / 5 * 1e6,
                      static_cast<long long>(v.second / 5));
        be.stop_stage_times();
      }
    }
  }
  for (const int64_t n : prefills) {
    std::vector<double> times;
    for (int r = 0; r < 4; ++r) {
      runner.set_batch(1);
      start = Clock::now();
      for (int64_t done = 0; done < n; done += std::min(chunk, n - done))
        runner.step(std::min(chunk, n - done), done + chunk >= n);
      times.push_back(seconds_since(start));
    }
    std::printf("prefill %lld: %.0f t/s (%.2f ms)\n", static_cast<long long>(n),
                static_cast<double>(n) / median(times), median(times) * 1e3);
    std::fflush(stdout);
    if (stages && n == prefills.back()) {
      be.take_stage_times();
      runner.set_batch(1);
      for (int64_t done = 0; done < n; done += std::min(chunk, n - done))
        runner.step(std::min(chunk, n - done), done + chunk >= n);
      std::vector<std::pair<std::string, std::pair<double, int64_t>>> parts;
      for (const auto& s : be.take_stage_times()) {
        const std::string part(s.label.part);
        auto it = std::find_if(parts.begin(), parts.end(), [&](const auto& p) { return p.first == part; });
        if (it == parts.end()) it = parts.insert(it, {part, {0.0, 0}});
        it->second.first += s.seconds, it->second.second += s.n_launches;
      }
      for (const auto& [part, v] : parts)
        std::printf("   %-18s %8.1f us  %4lld launches\n", part.c_str(), v.first * 1e6,
                    static_cast<long long>(v.second));
    }
  }
  return 0;
}

}  // namespace
}  // namespace synod

int main(int argc, char** argv) {
  try {
    return synod::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
