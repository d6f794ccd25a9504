// Row encoders, one thread: bf16 bytes of input per second, by type, search table and importance. Rows of
// 4096 columns (DeepSeek-V4's d_model); the 2 MiB of input and the output stay out of L2.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "quant/encode_rows.h"

namespace synod {
namespace {

constexpr size_t kColumns = 4096;
constexpr size_t kRows = 128;

const std::vector<float>& weights() {
  static const std::vector<float> x = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0F, 0.02F);
    std::vector<float> values(kColumns * kRows);
    for (float& v : values) v = normal(random);
    return values;
  }();
  return x;
}

const std::vector<float>& importance() {
  static const std::vector<float> w = [] {
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    std::vector<float> values(kColumns);
    for (float& v : values) v = std::exp(normal(random));
    return values;
  }();
  return w;
}

void encode(benchmark::State& state, const quant::SearchTable* search, DType type, bool weighted) {
  std::vector<std::byte> out(static_cast<size_t>(row_bytes(type, kColumns)));
  const std::span<const float> w = weighted ? std::span<const float>(importance()) : std::span<const float>();
  size_t row = 0;
  for (auto _ : state) {
    quant::encode_row_with(*search, type, std::span(weights()).subspan(row * kColumns, kColumns), w,
                           out.data(), 0);
    row = (row + 1) % kRows;
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kColumns * 2));
}

void register_all() {
  for (uint32_t id = 0; id < 64; ++id) {
    const std::optional<DType> type = dtype_from_ggml_id(id);
    if (!type || !can_encode_row(*type)) continue;
    for (const quant::SearchTable* search : quant::available_searches()) {
      for (const bool weighted : {false, true}) {
        if (weighted && !uses_importance(*type)) continue;
        const std::string title = std::string("encode/") + std::string(name(*type)) + "/" +
                                  std::string(search->name) + (weighted ? "/importance" : "");
        benchmark::RegisterBenchmark(title.c_str(), encode, search, *type, weighted);
      }
    }
  }
}

}  // namespace
}  // namespace synod

int main(int argc, char** argv) {
  synod::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
