// Time of one token mask at a vocabulary of 262,144: p50 and p99 of warm masks (every state met before), of a
// first walk (nothing met before), and of accept(). The vocabulary is synthetic, or a tokenizer.json named as
// the only argument that is not an option.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "text/grammar/builder.h"
#include "text/synthetic_vocabulary.h"

namespace synod {
namespace {

using grammar_testing::kArithmetic;
using grammar_testing::kPatternSchema;
using grammar_testing::kPersonSchema;

std::shared_ptr<const Vocabulary> vocabulary;

struct Times {
  std::vector<double> mask, accept;  // us
};

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A walk of at most `n` tokens; the seed decides the tokens.
void walk(const std::shared_ptr<const Grammar>& grammar, uint64_t seed, size_t n, Times& times) {
  std::mt19937_64 random(seed);
  GrammarState state(grammar);
  std::vector<uint32_t> words(vocabulary->n_words());
  for (size_t step = 0; step < n; ++step) {
    const double start = now_us();
    if (!state.mask(words)) return;
    times.mask.push_back(now_us() - start);
    std::vector<int32_t> ids, short_ids;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      if (!(words[size_t(id) / 32] >> (id & 31) & 1) || vocabulary->is_stop(id)) continue;
      ids.push_back(id);
      if (vocabulary->bytes_of(id).size() == 1) short_ids.push_back(id);
    }
    const auto& from = random() % 2 && !short_ids.empty() ? short_ids : ids;
    if (from.empty()) return;
    const int32_t id = from[random() % from.size()];
    const double before = now_us();
    state.accept(id);
    times.accept.push_back(now_us() - before);
  }
}

double percentile(std::vector<double>& values, size_t percent) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[std::min(values.size() - 1, values.size() * percent / 100)];
}

void run(benchmark::State& state, std::shared_ptr<const Grammar> (*make)()) {
  constexpr size_t kWalks = 8, kTokens = 100;
  Times first, warm;
  for (auto _ : state) {
    const auto grammar = make();
    for (uint64_t seed = 0; seed < kWalks; ++seed) walk(grammar, seed, kTokens, first);
    for (uint64_t seed = 0; seed < kWalks; ++seed) walk(grammar, seed, kTokens, warm);
    state.counters["cache_MiB"] = double(grammar->cache_stats().bytes) / (1 << 20);
  }
  state.counters["first_p50_us"] = percentile(first.mask, 50);
  state.counters["first_p99_us"] = percentile(first.mask, 99);
  state.counters["first_max_us"] = percentile(first.mask, 100);
  state.counters["warm_p50_us"] = percentile(warm.mask, 50);
  state.counters["warm_p99_us"] = percentile(warm.mask, 99);
  state.counters["warm_max_us"] = percentile(warm.mask, 100);
  state.counters["accept_p50_us"] = percentile(warm.accept, 50);
  state.counters["accept_p99_us"] = percentile(warm.accept, 99);
}

std::shared_ptr<const Grammar> schema() { return Grammar::from_json_schema(kPersonSchema, vocabulary); }
std::shared_ptr<const Grammar> free_json() { return Grammar::json_object(vocabulary); }
std::shared_ptr<const Grammar> pattern() { return Grammar::from_json_schema(kPatternSchema, vocabulary); }
std::shared_ptr<const Grammar> arithmetic() { return Grammar::from_gbnf(kArithmetic, vocabulary); }
std::shared_ptr<const Grammar> lazy_call() {
  GrammarBuilder b;
  return b.build(b.lazy({.tokens = {}, .texts = {"<call>"}}, b.json_schema(kPersonSchema)), vocabulary);
}

void load(const char* path) {
  const int32_t stops[] = {1};
  if (!path) {
    constexpr size_t kSize = 262'144;
    vocabulary = grammar_testing::synthetic_vocabulary(kSize);
    return;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const Tokenizer tokenizer(tokenizer_data_from_json(json, path), path);
  vocabulary = Vocabulary::from_tokenizer(tokenizer, stops);
}

}  // namespace
}  // namespace synod

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const double start = synod::now_us();
  synod::load(argc > 1 ? argv[1] : nullptr);
  std::printf("%d tokens, trie of %zu nodes (%zu outside of slices), built in %.0f ms\n",
              synod::vocabulary->size(), synod::vocabulary->trie().n_nodes(),
              synod::vocabulary->unsliced_trie().n_nodes(), (synod::now_us() - start) / 1000);
  const auto add = [](const char* name, std::shared_ptr<const synod::Grammar> (*make)()) {
    benchmark::RegisterBenchmark(name, synod::run, make)->Unit(benchmark::kMillisecond)->Iterations(1);
  };
  add("json_schema", synod::schema);
  add("free_json", synod::free_json);
  add("string_with_pattern", synod::pattern);
  add("gbnf_arithmetic", synod::arithmetic);
  add("lazy_call", synod::lazy_call);
  benchmark::RunSpecifiedBenchmarks();
}
