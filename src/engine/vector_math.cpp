#include "engine/vector_math.h"

#include <algorithm>
#include <array>
#include <limits>

// The same code for three instruction sets, chosen when the program starts. It is compiled without
// contraction to fused multiply-adds, so all round alike. Sanitizers are not ready when that choice is made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define SYNOD_WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define SYNOD_WIDE
#endif

namespace synod {
namespace {

[[gnu::always_inline]] inline float largest_value(const float* x, size_t n) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> best;
  best.fill(-std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = x[i + lane] > best[lane] ? x[i + lane] : best[lane];
    }
  }
  for (; i < n; ++i) best[0] = x[i] > best[0] ? x[i] : best[0];
  float result = best[0];
  for (const float v : best) result = v > result ? v : result;
  return result;
}

// p[i] = e^((x[i] - top) * scale) for n <= kExpBlock values; returns their sum.
[[gnu::always_inline]] inline double exp_block(const float* x, size_t n, float top, float scale, float* p) {
  // Two loops: in one, compilers turn the clamp into a branch and give up.
  for (size_t i = 0; i < n; ++i) {
    const float v = (x[i] - top) * scale;
    p[i] = v > kLeastExponent ? v : kLeastExponent;
  }
  for (size_t i = 0; i < n; ++i) p[i] = exp_in_range(p[i]);
  std::array<float, 8> lanes{};  // 32 terms each: their rounding stays below 2e-6 of the block
  size_t i = 0;
  for (; i + lanes.size() <= n; i += lanes.size()) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] += p[i + lane];
  }
  for (; i < n; ++i) lanes[0] += p[i];
  double sum = 0.0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

}  // namespace

SYNOD_WIDE float largest(std::span<const float> x) { return largest_value(x.data(), x.size()); }

SYNOD_WIDE float largest_of_blocks(std::span<const float> x, float* out) {
  float result = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0, block = 0; begin < x.size(); begin += kScanBlock, ++block) {
    out[block] = largest_value(x.data() + begin, std::min(kScanBlock, x.size() - begin));
    result = out[block] > result ? out[block] : result;
  }
  return result;
}

SYNOD_WIDE size_t at_least(std::span<const float> x, float least, uint32_t first, uint32_t* out) {
  size_t n = 0;
  for (size_t i = 0; i < x.size(); ++i) {  // written first, then counted or not: no branch to mispredict
    out[n] = first + static_cast<uint32_t>(i);
    n += x[i] >= least ? 1 : 0;
  }
  return n;
}

SYNOD_WIDE double exp_all(std::span<const float> x, float top, float scale, float* out) {
  double sum = 0.0;
  for (size_t begin = 0; begin < x.size(); begin += kExpBlock) {
    sum += exp_block(x.data() + begin, std::min(kExpBlock, x.size() - begin), top, scale, out + begin);
  }
  return sum;
}

SYNOD_WIDE double exp_sums(std::span<const float> x, float top, float scale, double* block_sums) {
  std::array<float, kExpBlock> p;
  double sum = 0.0;
  for (size_t begin = 0, block = 0; begin < x.size(); begin += kExpBlock, ++block) {
    block_sums[block] =
        exp_block(x.data() + begin, std::min(kExpBlock, x.size() - begin), top, scale, p.data());
    sum += block_sums[block];
  }
  return sum;
}

}  // namespace synod
