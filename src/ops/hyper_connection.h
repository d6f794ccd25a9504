// Hyper-connections: n_streams parallel residuals, mixed before and after each sublayer. The collapse weights
// are explicit, so that a model may compute them elsewhere.
#pragma once

#include <string_view>

#include "base/tensor.h"
#include "quant/matrix.h"

namespace synod {

// out[t, s, :] = x[t, :] for every stream s
struct HcExpand {
  static constexpr std::string_view kName = "hc_expand";
  Tensor out;  // f32 [n_tokens, n_streams, d]
  Tensor x;    // f32 [n_tokens, d]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x);
  }
};

// mix = fn * flat(x) * rsqrt(mean(x^2) + norm_eps), n = n_streams:
// pre[j] = sigmoid(mix[j] * scale[0] + base[j]) + eps; post[j] = 2 sigmoid(mix[n+j] * scale[1] + base[n+j]);
// comb = Sinkhorn(mix[2n + n j + k] * scale[2] + base[2n + n j + k]): row softmax + eps, columns / (sum +
// eps), then iterations - 1 times rows, columns. j is the source stream, k the destination.
struct HcMix {
  static constexpr std::string_view kName = "hc_mix";
  Tensor pre;    // f32 [n_tokens, n]
  Tensor post;   // f32 [n_tokens, n]
  Tensor comb;   // f32 [n_tokens, n, n]
  Tensor x;      // f32 [n_tokens, n, d]
  Matrix fn;     // [2n + n^2, n * d]
  Tensor base;   // f32 [2n + n^2]
  Tensor scale;  // f32 [3]
  float norm_eps = 0.0F;
  float eps = 0.0F;
  int64_t iterations = 0;  // at least 1
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("pre", pre), v.out("post", post), v.out("comb", comb), v.in("x", x), v.weight("fn", fn);
    v.in("base", base), v.in("scale", scale), v.value("iterations", iterations);
  }
};

// weights[j] = sigmoid((fn * flat(x) * rsqrt(mean(x^2) + norm_eps))[j] * scale[0] + base[j]) + eps
struct HcHeadMix {
  static constexpr std::string_view kName = "hc_head_mix";
  Tensor weights;  // f32 [n_tokens, n]
  Tensor x;        // f32 [n_tokens, n, d]
  Matrix fn;       // [n, n * d]
  Tensor base;     // f32 [n]
  Tensor scale;    // f32 [1]
  float norm_eps = 0.0F;
  float eps = 0.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("weights", weights), v.in("x", x), v.weight("fn", fn), v.in("base", base), v.in("scale", scale);
  }
};

// out[t, i] = sum_j weights[t, j] * x[t, j, i]
struct HcCollapse {
  static constexpr std::string_view kName = "hc_collapse";
  Tensor out;      // f32 [n_tokens, d]
  Tensor x;        // f32 [n_tokens, n, d]
  Tensor weights;  // f32 [n_tokens, n]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.in("weights", weights);
  }
};

// out[t, k, i] = post[t, k] * y[t, i] + sum_j comb[t, j, k] * x[t, j, i]
struct HcPost {
  static constexpr std::string_view kName = "hc_post";
  Tensor out;   // f32 [n_tokens, n, d], not x
  Tensor y;     // f32 [n_tokens, d]
  Tensor x;     // f32 [n_tokens, n, d]
  Tensor post;  // f32 [n_tokens, n]
  Tensor comb;  // f32 [n_tokens, n, n]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("y", y), v.in("x", x), v.in("post", post), v.in("comb", comb);
  }
};

}  // namespace synod
