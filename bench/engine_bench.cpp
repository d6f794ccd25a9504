// What the engine costs besides the model: share of a step outside forward(), for several batch sizes, greedy
// and sampled, with a cache that is full; and one sampler pick on vocabularies of 262,144 and 8,192.
//   engine_bench MODEL [BATCH]    one batch size only, without the sampler
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "cpu/cpu_backend.h"
#include "engine/engine.h"
#include "engine/logprobs.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void bench_batch(Engine& engine, int64_t n, const SamplerOptions& sampling, const char* label) {
  const EngineStats before = engine.stats();
  std::vector<std::unique_ptr<EventQueue>> queues;
  for (int64_t i = 0; i < n; ++i) {
    GenerationRequest request;
    for (int32_t t = 0; t < 32; ++t) request.prompt.push_back(300 + static_cast<int32_t>(i) * 31 + t * 7);
    request.max_tokens = 200;
    request.ignore_eos = sampling.temperature > 0.0F;
    request.speculate = false;
    request.sampling = sampling;
    request.sampling.seed = static_cast<uint64_t>(i);
    queues.push_back(std::make_unique<EventQueue>());
    engine.submit(request, queues.back()->sink());
  }
  for (auto& queue : queues) {
    while (queue->pop()) {
    }
  }
  const EngineStats after = engine.stats();
  const double forward = after.forward_seconds_total - before.forward_seconds_total;
  const double overhead = after.overhead_seconds_total - before.overhead_seconds_total;
  const auto steps = static_cast<double>(after.steps_total - before.steps_total);
  const auto tokens = static_cast<double>(after.generated_tokens_total - before.generated_tokens_total);
  fmt::print("batch {:>2} {:<28} step {:8.1f} us, engine {:6.1f} us = {:4.1f} %, {:8.0f} tok/s\n", n, label,
             (forward + overhead) / steps * 1e6, overhead / steps * 1e6,
             100 * overhead / (forward + overhead), tokens / (forward + overhead));
}

// Prompts that share nothing, until the cache has taken its memory: from then on pages are used again.
void fill_cache(Engine& engine) {
  for (int32_t seed = 0; engine.stats().evictions_total == 0; ++seed) {
    GenerationRequest request;
    for (int32_t t = 0; t < 512; ++t) request.prompt.push_back(300 + (seed * 769 + t * 31) % 7000);
    request.max_tokens = 1;
    engine.generate(request);
  }
}

template <typename Work>
double median_us(Work&& work) {
  std::vector<double> times;
  for (int i = 0; i < 51; ++i) {
    const auto start = Clock::now();
    work();
    times.push_back(seconds_since(start) * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + 25, times.end());
  return times[25];
}

void bench_sampler() {
  constexpr int64_t kVocab = 262144, kSmallVocab = 8192;
  std::vector<float> peaked, flat;
  for (int64_t i = 0; i < kVocab; ++i) {
    const double u = random_unit(1, 0, i);
    peaked.push_back(static_cast<float>(std::sqrt(-2 * std::log(u + 1e-12)) *
                                        std::cos(6.2831853 * random_unit(2, 0, i)) * 4));
    flat.push_back(static_cast<float>(u));
  }
  struct Case {
    const char* name;
    SamplerOptions options;
  };
  std::vector<uint32_t> mask(kVocab / 32, 0x0F0F0F0FU);
  for (const auto& [kind, logits] : {std::pair("normal, sigma 4", &peaked), {"uniform in [0, 1)", &flat}}) {
    for (const Case& c : {Case{"greedy", {}}, Case{"temperature 1", {.temperature = 1}},
                          Case{"top-k 40", {.temperature = 1, .top_k = 40}},
                          Case{"top-p 0.95", {.temperature = 1, .top_p = 0.95F}},
                          Case{"min-p 0.05", {.temperature = 1, .min_p = 0.05F}},
                          Case{"top-k 40, top-p 0.95, min-p 0.05",
                               {.temperature = 1, .top_k = 40, .top_p = 0.95F, .min_p = 0.05F}}}) {
      Sampler sampler(c.options);
      std::vector<float> row(logits->begin(), logits->end());
      int64_t position = 0;
      const double plain = median_us([&] { sampler.pick(row, position++, {}); });
      fmt::print("pick of {} ({}), {:<34} {:8.1f} us\n", kVocab, kind, c.name, plain);
      const std::span<float> small(row.data(), kSmallVocab);
      fmt::print("pick of {} ({}), {:<34} {:8.1f} us\n", kSmallVocab, kind, c.name,
                 median_us([&] { sampler.pick(small, position++, {}); }));
    }
    std::vector<float> row(logits->begin(), logits->end());
    Sampler sampler({});
    fmt::print("pick of {} ({}), {:<34} {:8.1f} us\n", kVocab, kind, "greedy under a mask",
               median_us([&] { sampler.pick(row, 0, {.allowed = mask, .banned = {}}); }));
    fmt::print("log-sum-exp and top 20 {:8.1f} us\n", median_us([&] {
                 const double sum = log_sum_exp(*logits);
                 static_cast<void>(top_logprobs(*logits, sum, 20));
               }));
  }
}

int run(const char* path, int64_t only) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const auto model = load_model(checkpoint, {});
  const Tokenizer tokenizer = load_tokenizer(checkpoint);
  CpuBackend backend(std::make_unique<RefBackend>(), CpuOptions{});
  EngineOptions options;
  // Room for 32 sequences of 232 tokens and some prefixes.
  options.cache_bytes = 40 * model->cache_spec().bytes(512);
  Engine engine(*model, backend, tokenizer, options);
  fill_cache(engine);
  SamplerOptions sampled{.temperature = 1.0F, .top_k = 40, .top_p = 0.95F};
  for (const int64_t n : {1, 4, 8, 32}) {
    if (only > 0 && n != only) continue;
    bench_batch(engine, n, {}, "greedy");
    bench_batch(engine, n, sampled, "top-k 40, top-p 0.95");
    bench_batch(engine, n, {.temperature = 1.0F}, "temperature 1");
  }
  if (only == 0) bench_sampler();
  return 0;
}

}  // namespace
}  // namespace synod

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    fmt::print(stderr, "usage: {} MODEL [BATCH]\n", argv[0]);
    return 2;
  }
  return synod::run(argv[1], argc == 3 ? std::atoll(argv[2]) : 0);
}
