// HcExpand, HcMix, HcHeadMix, HcCollapse, HcPost. Products with `fn` are f32 sums per 512 inputs, added in
// double in ascending order: the blocks are also what threads share.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/ops_parallel.h"
#include "cpu/vec_table.h"
#include "quant/matrix.h"

namespace synod {
namespace {

constexpr int64_t kBlock = 512;       // inputs per f32 sum
constexpr int64_t kTokenTile = 8;     // tokens that share a load of `fn`
constexpr int64_t kStreamedRows = 2;  // rows of `fn` that one item reads side by side
constexpr double kElementUs = 0.15e-3;
constexpr double kStreamUs = 0.3e-3;  // per f32 value read from memory

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

// Rows of a matrix, read as f32 piece by piece: where they lie, or converted into the reader's buffer. Rows
// of other types are decoded as a whole first.
class FloatRows {
 public:
  FloatRows(const Matrix& m, const cpu::VecTable& vec) : m_(m), vec_(vec), type_(m.type) {
    const bool plain = m.storage == Storage::kPlain && m.global_scale == 1.0F;
    if (plain && (type_ == DType::kF32 || type_ == DType::kF16 || type_ == DType::kBF16)) return;
    type_ = DType::kF32;
    decoded_.resize(static_cast<size_t>(m.n_out * m.n_in));
    for (int64_t r = 0; r < m.n_out; ++r) decode_row(m, r, decoded_.data() + r * m.n_in);
  }

  // Values [at, at + n) of row `r`; `buffer` has room for n.
  const float* read(int64_t r, int64_t at, int64_t n, float* buffer) const {
    if (!decoded_.empty()) return decoded_.data() + r * m_.n_in + at;
    const std::byte* row = m_.data + r * m_.row_stride;
    if (type_ == DType::kF32) return reinterpret_cast<const float*>(row) + at;
    const auto convert = type_ == DType::kF16 ? vec_.from_f16 : vec_.from_bf16;
    convert(reinterpret_cast<const uint16_t*>(row) + at, n, buffer);
    return buffer;
  }

 private:
  const Matrix& m_;
  const cpu::VecTable& vec_;
  DType type_;
  std::vector<float> decoded_;
};

// fn * flat(x) * rsqrt(mean(x^2) + norm_eps): [n_tokens, fn.n_out]
std::vector<double> mixes(cpu::Pool& pool, const cpu::VecTable& vec, const Tensor& x, const Matrix& fn,
                          float norm_eps) {
  const int64_t n_tokens = x.dim(0), n_streams = x.dim(1), d = x.dim(2), n_out = fn.n_out, n_in = fn.n_in;
  const FloatRows rows(fn, vec);
  std::vector<const float*> inputs;
  std::vector<float> flat;  // only where the streams of a token are not one run of memory
  if (!x.is_contiguous()) flat.resize(static_cast<size_t>(n_tokens * n_in));
  for (int64_t t = 0; t < n_tokens; ++t) {
    if (flat.empty()) {
      inputs.push_back(x.row_as<const float>(t * n_streams));
      continue;
    }
    float* copy = flat.data() + t * n_in;
    for (int64_t j = 0; j < n_streams; ++j)
      std::copy_n(x.row_as<const float>(t * n_streams + j), d, copy + j * d);
    inputs.push_back(copy);
  }
  // Per token and block: the products, then the sum of squares.
  const int64_t n_blocks = (n_in + kBlock - 1) / kBlock, width = n_out + 1;
  const int64_t n_tiles = (n_tokens + kTokenTile - 1) / kTokenTile;
  std::vector<float> sums(static_cast<size_t>(n_tokens * n_blocks * width));
  // Few tokens: an item streams whole rows of `fn`, which come from memory. Many tokens: an item keeps a
  // block of all rows in the cache for its tokens. The sums are the same.
  const int64_t group = n_tiles == 1 ? kStreamedRows : n_out;
  const int64_t n_groups = (n_out + group - 1) / group, step = n_tiles == 1 ? n_blocks : 1;
  const double work_us = static_cast<double>(n_tokens * n_in * n_out) * kElementUs / 4 +
                         static_cast<double>(n_in * n_out) * kStreamUs;
  cpu::for_items(pool, n_groups * n_tiles * (n_blocks / step), work_us, [&](int64_t item) {
    const int64_t first_row = item % n_groups * group, n_rows = std::min(group, n_out - first_row);
    const int64_t first = item / n_groups % n_tiles * kTokenTile;
    const int64_t tokens = std::min(kTokenTile, n_tokens - first);
    const int64_t first_block = item / n_groups / n_tiles * step;
    std::array<const float*, kTokenTile> q{};
    std::vector<const float*> keys(static_cast<size_t>(n_rows));
    std::vector<float> converted(static_cast<size_t>(n_rows * kBlock));
    for (int64_t block = first_block; block < first_block + step; ++block) {
      const int64_t at = block * kBlock, n = std::min(kBlock, n_in - at);
      for (int64_t r = 0; r < n_rows; ++r) {
        keys[static_cast<size_t>(r)] = rows.read(first_row + r, at, n, converted.data() + r * kBlock);
      }
      float* out = sums.data() + (first * n_blocks + block) * width;
      for (int64_t t = 0; t < tokens; ++t) {
        q[static_cast<size_t>(t)] = inputs[static_cast<size_t>(first + t)] + at;
        if (first_row == 0) out[t * n_blocks * width + n_out] = vec.sum_squares(q[static_cast<size_t>(t)], n);
      }
      vec.dots(q.data(), tokens, keys.data(), n_rows, n, 1.0F, out + first_row, n_blocks * width);
    }
  });
  std::vector<double> mix(static_cast<size_t>(n_tokens * n_out));
  std::vector<double> total(static_cast<size_t>(width));
  for (int64_t t = 0; t < n_tokens; ++t) {
    std::ranges::fill(total, 0.0);
    for (int64_t b = 0; b < n_blocks; ++b) {
      const float* part = sums.data() + (t * n_blocks + b) * width;
      for (int64_t o = 0; o < width; ++o) total[static_cast<size_t>(o)] += part[o];
    }
    const double scale = 1.0 / std::sqrt(total.back() / static_cast<double>(n_in) + norm_eps);
    for (int64_t o = 0; o < n_out; ++o)
      mix[static_cast<size_t>(t * n_out + o)] = total[static_cast<size_t>(o)] * scale;
  }
  return mix;
}

void divide_rows(double* c, int64_t n, double eps) {
  for (int64_t j = 0; j < n; ++j) {
    double sum = eps;
    for (int64_t k = 0; k < n; ++k) sum += c[j * n + k];
    for (int64_t k = 0; k < n; ++k) c[j * n + k] /= sum;
  }
}

void divide_columns(double* c, int64_t n, double eps) {
  for (int64_t k = 0; k < n; ++k) {
    double sum = eps;
    for (int64_t j = 0; j < n; ++j) sum += c[j * n + k];
    for (int64_t j = 0; j < n; ++j) c[j * n + k] /= sum;
  }
}

// c [n, n], source row and destination column, in place.
void sinkhorn(double* c, int64_t n, double eps, int64_t iterations) {
  for (int64_t j = 0; j < n; ++j) {
    const double top = *std::max_element(c + j * n, c + (j + 1) * n);
    double sum = 0.0;
    for (int64_t k = 0; k < n; ++k) sum += c[j * n + k] = std::exp(c[j * n + k] - top);
    for (int64_t k = 0; k < n; ++k) c[j * n + k] = c[j * n + k] / sum + eps;
  }
  divide_columns(c, n, eps);
  for (int64_t i = 1; i < iterations; ++i) {
    divide_rows(c, n, eps);
    divide_columns(c, n, eps);
  }
}

void mix_token(const HcMix& op, int64_t t, double* m) {
  const int64_t n = op.x.dim(1), n_mixes = 2 * n + n * n;
  const float* base = op.base.as<const float>();
  const float* scale = op.scale.as<const float>();
  for (int64_t i = 0; i < n_mixes; ++i) m[i] = m[i] * scale[i < n ? 0 : i < 2 * n ? 1 : 2] + base[i];
  sinkhorn(m + 2 * n, n, op.eps, op.iterations);
  float* pre = op.pre.row_as<float>(t);
  float* post = op.post.row_as<float>(t);
  for (int64_t j = 0; j < n; ++j) {
    pre[j] = static_cast<float>(sigmoid(m[j]) + op.eps);
    post[j] = static_cast<float>(2.0 * sigmoid(m[n + j]));
    float* comb = op.comb.row_as<float>(t * n + j);
    for (int64_t k = 0; k < n; ++k) comb[k] = static_cast<float>(m[2 * n + j * n + k]);
  }
}

// Pointers to the streams of token `t`.
void streams(const Tensor& x, int64_t t, std::vector<const float*>& out) {
  out.clear();
  for (int64_t j = 0; j < x.dim(1); ++j) out.push_back(x.row_as<const float>(t * x.dim(1) + j));
}

}  // namespace

void CpuBackend::run(const HcExpand& op) {
  const int64_t n = op.out.dim(1), d = op.x.dim(1);
  cpu::for_ranges(pool_, op.x.dim(0), 1, static_cast<double>(n * d) * kElementUs, [&](int64_t t, int64_t) {
    for (int64_t j = 0; j < n; ++j)
      std::copy_n(op.x.row_as<const float>(t), d, op.out.row_as<float>(t * n + j));
  });
}

void CpuBackend::run(const HcMix& op) {
  std::vector<double> mix = mixes(pool_, cpu::vec_table(kernels_.name), op.x, op.fn, op.norm_eps);
  constexpr double kSinkhornUs = 4.0;
  cpu::for_ranges(pool_, op.x.dim(0), 1, kSinkhornUs,
                  [&](int64_t t, int64_t) { mix_token(op, t, mix.data() + t * op.fn.n_out); });
}

void CpuBackend::run(const HcHeadMix& op) {
  const int64_t n = op.x.dim(1);
  const std::vector<double> mix = mixes(pool_, cpu::vec_table(kernels_.name), op.x, op.fn, op.norm_eps);
  const double scale = op.scale.as<const float>()[0];
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    for (int64_t j = 0; j < n; ++j) {
      const double z = mix[static_cast<size_t>(t * n + j)] * scale + op.base.as<const float>()[j];
      op.weights.row_as<float>(t)[j] = static_cast<float>(sigmoid(z) + op.eps);
    }
  }
}

void CpuBackend::run(const HcCollapse& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const int64_t n = op.x.dim(1), d = op.x.dim(2);
  cpu::for_ranges(pool_, op.x.dim(0), 1, static_cast<double>(n * d) * kElementUs, [&](int64_t t, int64_t) {
    std::vector<const float*> x;
    streams(op.x, t, x);
    vec.weighted_sum(nullptr, 0.0F, x.data(), op.weights.row_as<const float>(t), 1, n, d,
                     op.out.row_as<float>(t));
  });
}

void CpuBackend::run(const HcPost& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const int64_t n = op.x.dim(1), d = op.x.dim(2);
  cpu::for_ranges(pool_, op.x.dim(0) * n, 1, static_cast<double>(n * d) * kElementUs,
                  [&](int64_t item, int64_t) {
                    const int64_t t = item / n, k = item % n;
                    std::vector<const float*> x;
                    streams(op.x, t, x);
                    std::vector<float> weights;
                    for (int64_t j = 0; j < n; ++j)
                      weights.push_back(op.comb.row_as<const float>(t * n + j)[k]);
                    vec.weighted_sum(op.y.row_as<const float>(t), op.post.row_as<const float>(t)[k], x.data(),
                                     weights.data(), 1, n, d, op.out.row_as<float>(item));
                  });
}

}  // namespace synod
