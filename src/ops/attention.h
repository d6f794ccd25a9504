// Cache writes and attention over cached rows.
#pragma once

#include <string_view>

#include "base/tensor.h"
#include "ops/batch.h"
#include "ops/cache_rows.h"

namespace synod {

// Stores x[t, :] as row `position of t` of its sequence; with tokens_per_row > 1, x holds one row per block
// that the batch closes (sequence by sequence, ascending) and each is stored as row position /
// tokens_per_row.
struct CacheWrite {
  static constexpr std::string_view kName = "cache_write";
  CacheRows rows;
  Tensor x;  // f32 [n_tokens or closed blocks, row_dim]
  const BatchView* batch = nullptr;
  int64_t tokens_per_row = 1;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.cache_out("rows", rows, x.dim(0)), v.in("x", x), v.value("tokens_per_row", tokens_per_row);
  }
};

// Causal attention with grouped query heads over rows the batch has already written:
// s[h, j] = scale * q[t, h] . k[j, h / (n_heads / n_kv_heads)], j <= position of t, and position - j < window
// when window > 0; out[t, h] = sum_j softmax_j(s) v[j].
struct Attention {
  static constexpr std::string_view kName = "attention";
  Tensor out;   // f32 [n_tokens, n_heads, head_dim]
  Tensor q;     // f32 [n_tokens, n_heads, head_dim]
  CacheRows k;  // row_dim = n_kv_heads * head_dim
  CacheRows v;  // row_dim = n_kv_heads * head_dim
  const BatchView* batch = nullptr;
  int64_t n_kv_heads = 0;
  int64_t window = 0;  // tokens, own token included; 0 = unbounded
  float scale = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v_) const {
    v_.out("out", out), v_.in("q", q), v_.cache_in("k", k, *batch, window, 1),
        v_.cache_in("v", v, *batch, window, 1);
    v_.value("window", window), v_.value("scale", scale);
  }
};

// DeepSeek-V4 attention: one key/value head shared by all query heads, key = value. Keys of token t: window
// rows of positions max(0, t - window + 1) .. t, and compressed rows: those of `selected` (-1 ends a list),
// else all w < (t + 1) / ratio when `compressed` is given. Each head has a sink logit that takes attention
// mass but has no value: den = sum exp(l - M) + exp(sink - M), M = max(l, sink).
struct SparseAttention {
  static constexpr std::string_view kName = "sparse_attention";
  Tensor out;             // f32 [n_tokens, n_heads, d]
  Tensor q;               // f32 [n_tokens, n_heads, d]
  Tensor sinks;           // f32 [n_heads]
  CacheRows window_rows;  // row_dim d
  CacheRows compressed;   // row_dim d, or absent
  Tensor selected;        // i32 [n_tokens, top_k], ascending, -1 padded; absent = all visible rows
  const BatchView* batch = nullptr;
  int64_t window = 0;
  int64_t ratio = 0;  // tokens per compressed row
  float scale = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("q", q), v.in("sinks", sinks);
    v.cache_in("window_rows", window_rows, *batch, window, 1);
    if (compressed) v.cache_in("compressed", compressed, *batch, 0, ratio);
    if (selected) v.in("selected", selected);
    v.value("window", window), v.value("ratio", ratio), v.value("scale", scale);
  }
};

// score[w] = sum_h beta[t, h] * max(0, q[t, h] . keys[w]) over visible rows w < (position + 1) / ratio; the k
// rows of largest score, ties to the lower row, ascending. When at most k rows are visible, all of them.
struct IndexSelect {
  static constexpr std::string_view kName = "index_select";
  Tensor selected;  // i32 [n_tokens, k], ascending, -1 after the last
  Tensor q;         // f32 [n_tokens, n_heads, d]
  Tensor beta;      // f32 [n_tokens, n_heads]
  CacheRows keys;   // row_dim d
  const BatchView* batch = nullptr;
  int64_t ratio = 0;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("selected", selected), v.in("q", q), v.in("beta", beta), v.cache_in("keys", keys, *batch, 0, ratio);
    v.value("ratio", ratio);
  }
};

}  // namespace synod
