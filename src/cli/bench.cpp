#include "engine/bench.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/log.h"
#include "cli/profiling.h"
#include "cli/verbs.h"
#include "cpu/cpu_backend.h"
#include "engine/memory_plan.h"
#include "engine/session.h"
#include "wrap/trace.h"

namespace synod::cli {
namespace {

// The largest tensors, until there are enough bytes that caches do not answer for the memory.
std::vector<std::span<const std::byte>> probe_memory(const Checkpoint& checkpoint) {
  constexpr size_t kEnough = size_t{4} << 30;
  std::vector<std::span<const std::byte>> all, result;
  for (const auto& [name, t] : checkpoint.tensors()) {
    if (t.data != nullptr) all.emplace_back(t.data, static_cast<size_t>(t.bytes()));
  }
  std::ranges::sort(all, [](const auto& a, const auto& b) { return a.size() > b.size(); });
  size_t bytes = 0;
  for (const auto& part : all) {
    if (bytes >= kEnough) break;
    result.push_back(part.first(std::min(part.size(), kEnough - bytes)));
    bytes += result.back().size();
  }
  return result;
}

Trace::Ceilings measure_ceilings(const LoadedModel& loaded) {
  auto* cpu = dynamic_cast<CpuBackend*>(loaded.backend.get());
  if (cpu == nullptr) return {};
  const cpu::Ceilings c = cpu->measure_ceilings(probe_memory(*loaded.checkpoint));
  return {.gb_s = c.read_gb_s, .gflop_s = c.int8_gop_s};
}

struct OpsTable {
  std::string test;
  std::vector<Trace::Row> rows;
  std::string text;
};

// One more, traced repetition of each test at each depth: its times are not part of the rates.
std::vector<OpsTable> ops_tables(const LoadedModel& loaded, const BenchOptions& options,
                                 const Trace::Ceilings& ceilings) {
  std::vector<OpsTable> tables;
  for (const int64_t depth : options.depths) {
    for (const bool prefill : {true, false}) {
      for (const int64_t n : prefill ? options.prompts : options.decodes) {
        if (n == 0 || g_signal != 0) continue;
        Trace trace(*loaded.backend, false, layer_kinds(*loaded.model));
        BenchOptions one = options;
        one.depths = {depth}, one.repetitions = 1;
        one.prompts = {prefill ? n : 0}, one.decodes = {prefill ? 0 : n};
        // What fills the cache is not the test.
        const auto results = bench(*loaded.model, trace, one, [&](const std::string&) {
          trace.clear();
          return g_signal == 0;
        });
        if (results.empty()) continue;
        tables.push_back(
            {fmt::format("{} at depth {}", results[0].test, depth), trace.rows(), trace.table(ceilings)});
      }
    }
  }
  return tables;
}

struct Report {
  const Options& options;
  const LoadedModel& loaded;
  MemoryPlan plan;
  Trace::Ceilings ceilings;
  std::vector<BenchResult> results;
  std::vector<OpsTable> ops;

  std::string model() const { return loaded.model->info().name; }
  std::string isa() const {
    const auto* cpu = dynamic_cast<const CpuBackend*>(loaded.backend.get());
    return cpu == nullptr ? "" : std::string(cpu->isa());
  }
  int threads() const {
    const auto* cpu = dynamic_cast<const CpuBackend*>(loaded.backend.get());
    return cpu == nullptr ? 1 : cpu->n_threads();
  }
  // Weight bytes per second of a decode test.
  double gb_s(const BenchResult& r) const {
    return r.test.starts_with("tg") ? r.median() * static_cast<double>(plan.bytes_per_token) * 1e-9 : 0.0;
  }
};

void print_markdown(const Report& report) {
  std::printf("model: %s, %s of weights, %s read per token\n", report.model().c_str(),
              human_bytes(report.plan.weight_bytes).c_str(),
              human_bytes(report.plan.bytes_per_token).c_str());
  std::printf("backend: %s %s, %d threads", std::string(report.loaded.backend->name()).c_str(),
              report.isa().c_str(), report.threads());
  if (report.ceilings.gb_s > 0.0) std::printf(", measured read bandwidth %.1f GB/s", report.ceilings.gb_s);
  if (report.ceilings.gflop_s > 0.0)
    std::printf(", measured 8-bit dot products %.0f GOP/s", report.ceilings.gflop_s);
  std::printf("\n\n| test | depth | median t/s | min | max | weights GB/s | share of bandwidth |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|\n");
  for (const BenchResult& r : report.results) {
    std::printf("| %s | %lld | %.2f | %.2f | %.2f |", r.test.c_str(), static_cast<long long>(r.depth),
                r.median(), r.min(), r.max());
    const double gb_s = report.gb_s(r);
    if (gb_s > 0.0)
      std::printf(" %.2f |", gb_s);
    else
      std::printf(" |");
    if (gb_s > 0.0 && report.ceilings.gb_s > 0.0)
      std::printf(" %.1f %% |\n", 100.0 * gb_s / report.ceilings.gb_s);
    else
      std::printf(" |\n");
  }
  for (const OpsTable& table : report.ops) std::printf("\n%s\n%s", table.test.c_str(), table.text.c_str());
}

void print_json(const Report& report) {
  nlohmann::ordered_json object = {{"schema_version", 1},
                                   {"model", report.model()},
                                   {"backend", std::string(report.loaded.backend->name())},
                                   {"isa", report.isa()},
                                   {"threads", report.threads()},
                                   {"weight_bytes", report.plan.weight_bytes},
                                   {"bytes_per_token", report.plan.bytes_per_token},
                                   {"read_gb_s", report.ceilings.gb_s},
                                   {"int8_gop_s", report.ceilings.gflop_s},
                                   {"results", nlohmann::ordered_json::array()}};
  for (const BenchResult& r : report.results) {
    nlohmann::ordered_json row = {{"test", r.test},     {"depth", r.depth},   {"median_tps", r.median()},
                                  {"min_tps", r.min()}, {"max_tps", r.max()}, {"reps", r.rates.size()},
                                  {"tps", r.rates}};
    if (const double gb_s = report.gb_s(r); gb_s > 0.0) {
      row["weights_gb_s"] = gb_s;
      if (report.ceilings.gb_s > 0.0) row["bandwidth_share"] = gb_s / report.ceilings.gb_s;
    }
    object["results"].push_back(std::move(row));
  }
  for (const OpsTable& table : report.ops) {
    auto rows = nlohmann::ordered_json::array();
    for (const Trace::Row& r : table.rows) {
      rows.push_back({{"part", r.part},
                      {"layers", r.kind},
                      {"op", r.op},
                      {"calls", r.calls},
                      {"ms", static_cast<double>(r.ns) * 1e-6},
                      {"bytes", r.bytes},
                      {"flops", r.flops}});
    }
    object["ops"].push_back({{"test", table.test}, {"rows", std::move(rows)}});
  }
  std::printf("%s\n", object.dump(2).c_str());
}

}  // namespace

int bench_verb(const Options& options) {
  const LoadedModel loaded = load(options);
  BenchOptions bench_options{.prompts = options.bench_prompts,
                             .decodes = options.bench_decodes,
                             .depths = options.bench_depths,
                             .repetitions = options.repetitions,
                             .chunk = options.chunk};
  bench_options.check();
  const int64_t deepest = std::ranges::max(bench_options.depths);
  const int64_t longest =
      std::max(std::ranges::max(bench_options.prompts), std::ranges::max(bench_options.decodes));
  Report report{
      .options = options,
      .loaded = loaded,
      .plan = plan_memory(*loaded.model, deepest + longest * bench_options.repetitions, options.chunk),
      .ceilings = measure_ceilings(loaded),
      .results = {},
      .ops = {}};
  Session(*loaded.model, *loaded.backend).warm_up();
  report.results = bench(*loaded.model, *loaded.backend, bench_options, [&options](const std::string& what) {
    if (options.verbose) log_info("{}", what);
    return g_signal == 0;
  });
  if (options.ops_table) report.ops = ops_tables(loaded, bench_options, report.ceilings);
  if (options.json || options.bench_format == "json")
    print_json(report);
  else
    print_markdown(report);
  return g_signal != 0 ? 128 + g_signal : 0;
}

}  // namespace synod::cli
