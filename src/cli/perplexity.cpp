#include "engine/perplexity.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/text_ids.h"
#include "cli/verbs.h"

namespace synod::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Estimate& e) { return {{"mean", e.mean}, {"error", e.error}}; }

Json json_of(const PerplexityResult& r) {
  return {{"perplexity", r.perplexity.mean},
          {"perplexity_error", r.perplexity.error},
          {"nll", r.nll.mean},
          {"nll_error", r.nll.error},
          {"chunks", r.n_chunks},
          {"scored_tokens", r.n_scored}};
}

// "[1]4.5412,[2]5.3011," as the run goes; a terminal and a log file show it alike.
void print_running(const Options& options, int64_t chunk, const std::string& values) {
  if (options.quiet || options.no_progress) return;
  std::fprintf(stderr, "[%lld]%s,", static_cast<long long>(chunk), values.c_str());
  std::fflush(stderr);
}

void end_running(const Options& options) {
  if (!options.quiet && !options.no_progress) std::fputc('\n', stderr);
}

void print_perplexity(const char* label, const PerplexityResult& r) {
  std::printf("%s%.4f +- %.4f (%lld tokens scored, %lld chunks)\n", label, r.perplexity.mean,
              r.perplexity.error, static_cast<long long>(r.n_scored), static_cast<long long>(r.n_chunks));
}

void print_text(const DivergenceResult& d) {
  print_perplexity("perplexity         ", d.model);
  print_perplexity("perplexity of base ", d.base);
  std::printf("ln(ratio)          %.6f +- %.6f\n", d.log_ratio.mean, d.log_ratio.error);
  std::printf("KL divergence      mean %.6f +- %.6f, median %.6f, 99 %% %.6f, 99.9 %% %.6f, max %.6f\n",
              d.kl.mean, d.kl.error, d.kl_median, d.kl_99, d.kl_99_9, d.kl_max);
  std::printf("same top token     %.3f +- %.3f %%\n", 100 * d.same_top.mean, 100 * d.same_top.error);
}

Json json_of(const DivergenceResult& d) {
  Json out = json_of(d.model);
  out["base"] = json_of(d.base);
  out["log_ratio"] = json_of(d.log_ratio);
  out["kl"] = {{"mean", d.kl.mean}, {"error", d.kl.error}, {"median", d.kl_median},
               {"p99", d.kl_99},    {"p99_9", d.kl_99_9},  {"max", d.kl_max}};
  out["same_top"] = json_of(d.same_top);
  return out;
}

}  // namespace

int perplexity_verb(const Options& given) {
  constexpr int64_t kChunkTokens = 512;
  Options options = given;
  if (options.context_length == 0) options.context_length = kChunkTokens;
  const LoadedModel loaded = load(options);
  const TextIds text = read_text_ids(options, *loaded.checkpoint);
  const PerplexityOptions measure{.chunk_tokens = options.context_length,
                                  .max_chunks = options.max_chunks,
                                  .step_tokens = options.chunk,
                                  .cancelled = [] { return g_signal != 0; }};
  Json object = {{"schema_version", 1}, {"text", text.source}, {"tokens", text.ids.size()}};
  if (options.kl_base.empty()) {
    const PerplexityResult r =
        measure_perplexity(*loaded.model, *loaded.backend, text.ids, text.bos, measure,
                           [&](int64_t chunk, int64_t, const PerplexityResult& so_far) {
                             print_running(options, chunk, fmt::format("{:.4f}", so_far.perplexity.mean));
                           });
    end_running(options);
    object.update(json_of(r));
    if (!options.json) print_perplexity("perplexity ", r);
  } else {
    const Checkpoint base_file = Checkpoint::open(options.kl_base);
    const auto base = load_model(base_file, options.model_options());
    const DivergenceResult d = measure_divergence(
        *loaded.model, *base, *loaded.backend, text.ids, text.bos, measure,
        [&](int64_t chunk, int64_t, const DivergenceResult& so_far) {
          print_running(options, chunk,
                        fmt::format("{:.4f}/{:.5f}", so_far.model.perplexity.mean, so_far.kl.mean));
        });
    end_running(options);
    object.update(json_of(d));
    if (!options.json) print_text(d);
  }
  if (options.json) std::printf("%s\n", object.dump().c_str());
  return g_signal != 0 ? 128 + g_signal : 0;
}

}  // namespace synod::cli
