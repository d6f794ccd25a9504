// HcExpand, HcMix, HcHeadMix, HcCollapse, HcPost. Mixes stay in double until they are written.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ref/products.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

// fn * flat(x) * rsqrt(mean(x^2) + norm_eps): [n_tokens, fn.n_out]
std::vector<double> mixes(const Tensor& x, const Matrix& fn, float norm_eps) {
  const int64_t n_tokens = x.dim(0);
  const ref::WideRows flat(x, fn.n_in);
  std::vector<double> mix(static_cast<size_t>(n_tokens * fn.n_out)), scale;
  std::vector<const double*> inputs;
  for (int64_t t = 0; t < n_tokens; ++t) {
    const double* v = flat.row(t);
    inputs.push_back(v);
    scale.push_back(1.0 / std::sqrt(ref::dot(v, v, fn.n_in) / static_cast<double>(fn.n_in) + norm_eps));
  }
  ref::multiply(fn, inputs, [&](size_t t, int64_t o, double sum) {
    mix[t * static_cast<size_t>(fn.n_out) + static_cast<size_t>(o)] = sum * scale[t];
  });
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

// c [n, n], source row and destination column, in place: ends with columns, whose sums are then 1.
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

}  // namespace

void RefBackend::run(const HcExpand& op) {
  const int64_t n = op.out.dim(1);
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    const float* x = op.x.row_as<const float>(t);
    for (int64_t j = 0; j < n; ++j) std::copy_n(x, op.x.dim(1), op.out.row_as<float>(t * n + j));
  }
}

void RefBackend::run(const HcMix& op) {
  const int64_t n = op.x.dim(1), n_mixes = 2 * n + n * n;
  std::vector<double> mix = mixes(op.x, op.fn, op.norm_eps);
  const float* base = op.base.as<const float>();
  const float* scale = op.scale.as<const float>();
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    double* m = mix.data() + t * n_mixes;
    for (int64_t i = 0; i < n_mixes; ++i) {
      const double s = scale[i < n ? 0 : i < 2 * n ? 1 : 2];
      m[i] = m[i] * s + base[i];
    }
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
}

void RefBackend::run(const HcHeadMix& op) {
  const int64_t n = op.x.dim(1);
  const std::vector<double> mix = mixes(op.x, op.fn, op.norm_eps);
  const double scale = op.scale.as<const float>()[0];
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    for (int64_t j = 0; j < n; ++j) {
      const double z = mix[static_cast<size_t>(t * n + j)] * scale + op.base.as<const float>()[j];
      op.weights.row_as<float>(t)[j] = static_cast<float>(sigmoid(z) + op.eps);
    }
  }
}

void RefBackend::run(const HcCollapse& op) {
  const int64_t n = op.x.dim(1), d = op.x.dim(2);
  std::vector<double> sum(static_cast<size_t>(d));
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    std::ranges::fill(sum, 0.0);
    for (int64_t j = 0; j < n; ++j) {
      const double weight = op.weights.row_as<const float>(t)[j];
      const float* x = op.x.row_as<const float>(t * n + j);
      for (int64_t i = 0; i < d; ++i) sum[static_cast<size_t>(i)] += weight * x[i];
    }
    float* out = op.out.row_as<float>(t);
    for (int64_t i = 0; i < d; ++i) out[i] = static_cast<float>(sum[static_cast<size_t>(i)]);
  }
}

void RefBackend::run(const HcPost& op) {
  const int64_t n = op.x.dim(1), d = op.x.dim(2);
  std::vector<double> sum(static_cast<size_t>(d));
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    const float* y = op.y.row_as<const float>(t);
    for (int64_t k = 0; k < n; ++k) {
      const double post = op.post.row_as<const float>(t)[k];
      for (int64_t i = 0; i < d; ++i) sum[static_cast<size_t>(i)] = post * y[i];
      for (int64_t j = 0; j < n; ++j) {
        const double comb = op.comb.row_as<const float>(t * n + j)[k];
        const float* x = op.x.row_as<const float>(t * n + j);
        for (int64_t i = 0; i < d; ++i) sum[static_cast<size_t>(i)] += comb * x[i];
      }
      float* out = op.out.row_as<float>(t * n + k);
      for (int64_t i = 0; i < d; ++i) out[i] = static_cast<float>(sum[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace synod
