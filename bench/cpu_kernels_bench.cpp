// Speed of the matrix kernels: bytes of weights per second for one token, from DRAM and from L2, and
// operations per second for many tokens. Shapes are those of the models we run. Pin threads and quote the
// machine with the numbers.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "base/half.h"
#include "cpu/kernels.h"

namespace synod::cpu {
namespace {

// The table that SYNOD_CPU_ISA names, or the best.
const KernelTable& table() {
  const char* pinned = std::getenv("SYNOD_CPU_ISA");
  static const KernelTable& chosen = kernel_table(pinned == nullptr ? std::string_view() : pinned);
  return chosen;
}

struct Shape {
  DType type;
  int64_t n_in;
  int64_t n_out;
  Storage storage = Storage::kBlock;  // kPlain or kBlock: `type` decides
  int bits = 0;                       // kMlxAffine

  bool has_scales() const { return storage != Storage::kBlock; }
  std::string title() const {
    if (!has_scales()) return std::string(synod::name(type));
    return fmt::format("{}{}", synod::name(storage), bits == 0 ? std::string() : std::to_string(bits));
  }
  int64_t code_bytes() const {
    switch (storage) {
      case Storage::kFp8Block:
        return n_in;
      case Storage::kMlxAffine:
        return n_in * bits / 8;
      case Storage::kNvFp4:
      case Storage::kFp4:
        return n_in / 2;
      default:
        return row_bytes(type, n_in);
    }
  }
};

// Random codes under small scales: which ones does not change the speed, but NaN and subnormals might.
void fill(DType type, std::byte* data, int64_t bytes) {
  std::mt19937_64 rng(1);
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    // Every two or four bytes are an ordinary f16, bf16 or f32.
    const uint64_t word = (rng() & 0x0f0f0f0f0f0f0f0fULL) | 0x2020202020202020ULL;
    std::memcpy(data + i, &word, sizeof(word));
  }
  if (type == DType::kMXFP4) {
    for (int64_t i = 0; i < bytes; i += info(type).block_bytes) data[i] = std::byte{120};
  }
}

struct Problem {
  Problem(const Shape& shape, int64_t copies, int64_t n_tokens) {
    const int64_t row = shape.code_bytes();
    matrix.storage = is_block_type(shape.type) ? Storage::kBlock : Storage::kPlain;
    matrix.type = shape.type;
    matrix.n_in = shape.n_in;
    matrix.n_out = shape.n_out * copies;
    matrix.row_stride = row;
    weights = Buffer::host(row * matrix.n_out);
    fill(shape.type, weights.data(), weights.bytes());
    matrix.data = weights.data();
    if (shape.has_scales()) set_scales(shape);
    const ActivationKind kind = activation_kind(matrix);
    const int64_t stride = record_bytes(kind, shape.n_in);
    records = Buffer::host(stride * n_tokens);
    std::vector<float> x(static_cast<size_t>(shape.n_in));
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    for (int64_t m = 0; m < n_tokens; ++m) {
      for (float& v : x) v = normal(rng);
      table().prepare(kind, x.data(), shape.n_in, records.data() + m * stride);
      pointers.push_back(records.data() + m * stride);
    }
  }

  // The bytes of the scales are not counted: a few per cent of the codes, an eighth for NVFP4.
  void set_scales(const Shape& shape) {
    matrix.storage = shape.storage;
    matrix.type = DType::kU8;
    matrix.bits = shape.bits;
    switch (shape.storage) {
      case Storage::kFp8Block:
        matrix.group = matrix.tile_out = 128;
        matrix.scale_type = DType::kF32;
        break;
      case Storage::kMlxAffine:
        matrix.group = 64;
        matrix.scale_type = DType::kBF16;
        break;
      case Storage::kNvFp4:
        matrix.group = 16;
        matrix.scale_type = DType::kF8E4M3;
        matrix.global_scale = 3.0F;
        matrix.global_divides = true;
        break;
      default:
        matrix.group = 32;
        matrix.scale_type = DType::kF8E8M0;
    }
    matrix.scale_stride = matrix.n_in / matrix.group * info(matrix.scale_type).block_bytes;
    scales = Buffer::host(matrix.scale_stride * matrix.n_out);
    fill(matrix.scale_type, scales.data(), scales.bytes());
    matrix.scales = scales.data();
    if (shape.storage == Storage::kMlxAffine) matrix.biases = scales.data();
  }

  Matrix matrix;
  Buffer weights;
  Buffer scales;
  Buffer records;
  std::vector<const std::byte*> pointers;
};

// A scheduler may leave threads that live for milliseconds on the core that started them.
void pin_to_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// Runs all rows on `n_threads` threads, claimed in items of about 256 KiB of weights.
void run_all(const Problem& p, int n_threads, int64_t rows_per_item) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int thread) {
    if (n_threads > 1) pin_to_core(thread);
    const auto n_tokens = static_cast<int64_t>(p.pointers.size());
    const Buffer scratch = Buffer::host(scratch_bytes(n_tokens));
    std::vector<float> out(static_cast<size_t>(n_tokens * rows_per_item));
    std::vector<float*> rows;
    for (int64_t m = 0; m < n_tokens; ++m) rows.push_back(out.data() + m * rows_per_item);
    for (;;) {
      const int64_t begin = next.fetch_add(rows_per_item);
      if (begin >= p.matrix.n_out) return;
      table().rows(p.matrix, begin, std::min(begin + rows_per_item, p.matrix.n_out), p.pointers, rows,
                   scratch.data());
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < n_threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& t : others) t.join();
}

int64_t item_rows(const Matrix& m) {
  const int64_t rows = (256 << 10) / m.row_stride / 32 * 32;
  return rows < 32 ? 32 : rows;
}

// One token; weights larger than any cache, two threads.
void decode_dram(benchmark::State& state, Shape shape, int64_t n_tokens) {
  const int64_t matrix_bytes = shape.code_bytes() * shape.n_out;
  const Problem p(shape, (int64_t{1} << 29) / matrix_bytes + 1, n_tokens);
  for (auto _ : state) run_all(p, 2, item_rows(p.matrix));
  state.SetBytesProcessed(state.iterations() * p.weights.bytes());
}

// One token; about 512 KiB of weights, one thread: the speed of the instructions alone.
void decode_l2(benchmark::State& state, Shape shape, int64_t n_tokens) {
  shape.n_out = std::max<int64_t>(16, (512 << 10) / shape.code_bytes() / 16 * 16);
  const Problem p(shape, 1, n_tokens);
  for (auto _ : state) run_all(p, 1, p.matrix.n_out);
  state.SetBytesProcessed(state.iterations() * p.weights.bytes());
}

// One thread, rows that stay in L1: the instructions alone.
void decode_l1(benchmark::State& state, Shape shape, int64_t n_tokens) {
  shape.n_in = 1024;
  shape.n_out = 16;
  const Problem p(shape, 1, n_tokens);
  const Buffer scratch = Buffer::host(scratch_bytes(n_tokens));
  std::vector<float> out(static_cast<size_t>(16 * n_tokens));
  std::vector<float*> rows;
  for (int64_t m = 0; m < n_tokens; ++m) rows.push_back(out.data() + 16 * m);
  for (auto _ : state) table().rows(p.matrix, 0, 16, p.pointers, rows, scratch.data());
  state.SetBytesProcessed(state.iterations() * p.weights.bytes());
}

// Many tokens, one thread; the weights are read from L2 or L3 once per call.
void prefill(benchmark::State& state, Shape shape, int64_t n_tokens) {
  const Problem p(shape, 1, n_tokens);
  for (auto _ : state) run_all(p, 1, 32);
  state.counters["GOP/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(state.iterations() * shape.n_in * shape.n_out * n_tokens),
                         benchmark::Counter::kIsRate);
}

void prepare(benchmark::State& state, ActivationKind kind) {
  constexpr int64_t kWidth = 2816;
  std::vector<float> x(kWidth, 0.5F);
  const Buffer record = Buffer::host(record_bytes(kind, kWidth));
  for (auto _ : state) table().prepare(kind, x.data(), kWidth, record.data());
}

void register_all() {
  const std::vector<Shape> shapes = {{DType::kQ8_0, 704, 2816},
                                     {DType::kQ8_0, 4096, 2048},
                                     {DType::kQ4_K, 2816, 4096},
                                     {DType::kQ5_0, 2112, 2816},
                                     {DType::kQ6_K, 2816, 2048},
                                     {DType::kQ5_K, 2816, 4096},
                                     {DType::kQ2_K, 2048, 4096},
                                     {DType::kIQ2_XXS, 4096, 2048},
                                     {DType::kMXFP4, 4096, 2048},
                                     {DType::kQ4_0, 704, 2816},
                                     {DType::kBF16, 2816, 2048},
                                     {DType::kF16, 4096, 1024},
                                     {DType::kF32, 2816, 128},
                                     {DType::kQ3_K, 2816, 2048},
                                     {DType::kIQ4_XS, 2816, 2048},
                                     {DType::kIQ4_NL, 704, 2816},
                                     {DType::kIQ2_XS, 4096, 2048},
                                     {DType::kIQ2_S, 4096, 2048},
                                     {DType::kIQ3_XXS, 4096, 2048},
                                     {DType::kIQ3_S, 4096, 2048},
                                     {DType::kIQ1_S, 4096, 2048},
                                     {DType::kIQ1_M, 4096, 2048},
                                     {DType::kTQ1_0, 4096, 2048},
                                     {DType::kTQ2_0, 4096, 2048},
                                     {DType::kNVFP4, 4096, 2048},
                                     {DType::kU8, 4096, 2048, Storage::kFp8Block},
                                     {DType::kU8, 4096, 2048, Storage::kNvFp4},
                                     {DType::kU8, 4096, 2048, Storage::kFp4},
                                     {DType::kU8, 4096, 2048, Storage::kMlxAffine, 3},
                                     {DType::kU8, 4096, 2048, Storage::kMlxAffine, 4},
                                     {DType::kU8, 4096, 2048, Storage::kMlxAffine, 5},
                                     {DType::kU8, 4096, 2048, Storage::kMlxAffine, 6},
                                     {DType::kU8, 4096, 2048, Storage::kMlxAffine, 8}};
  for (const Shape& s : shapes) {
    const std::string base = fmt::format("{}/{}x{}/", s.title(), s.n_in, s.n_out);
    // One thread: rates of CPU time, which other jobs on the machine disturb least.
    const auto add = [&](const std::string& what, auto function, int64_t n_tokens) {
      const std::string title = base + what + "/tokens:" + std::to_string(n_tokens);
      return benchmark::RegisterBenchmark(title.c_str(), function, s, n_tokens)
          ->Unit(benchmark::kMicrosecond);
    };
    add("dram", decode_dram, 1)->UseRealTime();
    add("dram", decode_dram, 4)->UseRealTime();
    add("l1", decode_l1, 1);
    add("l2", decode_l2, 1);
    add("gemm", prefill, 8);
    add("gemm", prefill, 32);
    add("gemm", prefill, 512);
  }
  benchmark::RegisterBenchmark("prepare/blocks32/2816", prepare, ActivationKind::kBlocks32);
  benchmark::RegisterBenchmark("prepare/blocks256/2816", prepare, ActivationKind::kBlocks256);
}

}  // namespace
}  // namespace synod::cpu

int main(int argc, char** argv) {
  synod::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
