#include "cpu/ceilings.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace synod::cpu {
namespace {

constexpr size_t kItem = size_t{1} << 20;
constexpr int kReadRepetitions = 3;
constexpr int kRateRepetitions = 5;

template <typename Body>
double seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using Quad = uint64_t __attribute__((vector_size(16), may_alias));

// `bytes` starts at a multiple of 16. Reading ahead keeps more lines in flight than the hardware asks for.
uint64_t sum_lines(std::span<const std::byte> bytes) {
  constexpr size_t kAhead = 4096, kLine = 64;
  Quad a{}, b{}, c{}, d{};
  for (size_t i = 0; i + kLine <= bytes.size(); i += kLine) {
    const auto* p = reinterpret_cast<const Quad*>(bytes.data() + i);
    __builtin_prefetch(bytes.data() + i + kAhead, 0, 2);
    a ^= p[0], b ^= p[1], c ^= p[2], d ^= p[3];
  }
  a ^= b ^ c ^ d;
  return a[0] ^ a[1];
}

double read_rate(Pool& pool, std::span<const std::span<const std::byte>> memory) {
  std::vector<std::span<const std::byte>> items;
  size_t bytes = 0;
  for (std::span<const std::byte> part : memory) {
    constexpr uintptr_t kAlign = alignof(Quad);
    part = part.subspan(std::min(part.size(), -reinterpret_cast<uintptr_t>(part.data()) % kAlign));
    bytes += part.size();
    for (size_t at = 0; at < part.size(); at += kItem)
      items.push_back(part.subspan(at, std::min(kItem, part.size() - at)));
  }
  if (bytes == 0) return 0.0;
  std::atomic<uint64_t> sink{0};  // else the reads are dead
  double best = 0.0;
  for (int r = 0; r < kReadRepetitions; ++r) {
    const double s = seconds([&] {
      pool.run(static_cast<int64_t>(items.size()), [&](int64_t i, int) {
        sink.fetch_xor(sum_lines(items[static_cast<size_t>(i)]), std::memory_order_relaxed);
      });
    });
    best = std::max(best, static_cast<double>(bytes) / s * 1e-9);
  }
  return best;
}

// Runs `steps` steps of dot products on registers and returns the multiply-adds done.
using DotLoop = double (*)(int64_t steps);

#if defined(__x86_64__)
constexpr int kChains = 12;  // more than latency times ports

__attribute__((target("avx512f,avx512bw,avx512vnni"))) double dots_avx512(int64_t steps) {
  __m512i sums[kChains];
#pragma GCC unroll 16
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      sums[c] = _mm512_dpbusd_epi32(sums[c], a, b);
      asm volatile("" : "+v"(sums[c]));  // keeps the chains in registers and in the program
    }
  }
  return static_cast<double>(steps) * kChains * 64;
}

__attribute__((target("avx2"))) double dots_avx2(int64_t steps) {
  __m256i sums[kChains];
#pragma GCC unroll 16
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  const __m256i b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      __m256i a = _mm256_set1_epi8(3);
      asm volatile("" : "+x"(a));
      sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
      asm volatile("" : "+x"(sums[c]));
    }
  }
  return static_cast<double>(steps) * kChains * 32;
}
#endif

double dot_rate(Pool& pool, std::string_view isa) {
  DotLoop loop = nullptr;
#if defined(__x86_64__)
  if (isa == "avx512") loop = dots_avx512;
  if (isa == "avx2") loop = dots_avx2;
#endif
  if (loop == nullptr) return 0.0;
  constexpr int64_t kSteps = 1 << 20;
  double best = 0.0;
  for (int r = 0; r < kRateRepetitions; ++r) {
    std::atomic<int64_t> done{0};
    const int64_t items = int64_t{4} * pool.n_threads();
    const double s =
        seconds([&] { pool.run(items, [&](int64_t, int) { done += static_cast<int64_t>(loop(kSteps)); }); });
    best = std::max(best, 2.0 * static_cast<double>(done.load()) / s * 1e-9);
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings(Pool& pool, std::string_view isa,
                          std::span<const std::span<const std::byte>> memory) {
  return {.read_gb_s = read_rate(pool, memory), .int8_gop_s = dot_rate(pool, isa)};
}

}  // namespace synod::cpu
