// Norm, rotation, gated activations and the small element-wise operations.
#pragma once

#include <string_view>

#include "base/tensor.h"

namespace synod {

// out[..., i] = x[..., i] / sqrt(mean_j(x[..., j]^2) + eps) * weight[i] * factor, over the innermost
// dimension
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  Tensor out;        // f32 [..., d], may be x
  Tensor x;          // f32 [..., d]
  Tensor weight;     // f32 [d], or absent for 1
  float eps = 0.0F;  // added to the mean square, inside the root
  float factor = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x);
    if (weight) v.in("weight", weight);
    v.value("eps", eps), v.value("factor", factor);
  }
};

// Rotates pairs of a head by position * freqs[i], in place. The phase is f32(position) * f32(freq), one
// rounding, and sin/cos are exact for that f32 phase: the published models were run this way.
struct Rope {
  static constexpr std::string_view kName = "rope";
  enum class Layout {
    kHalves,       // NeoX: component first + i pairs with first + i + n_pairs
    kInterleaved,  // component first + 2i pairs with first + 2i + 1
  };
  Tensor x;          // f32 [n_tokens, n_heads, d] or [n_tokens, d], in place
  Tensor positions;  // i32 [n_tokens]
  Tensor freqs;      // f32 [n_pairs]; 0 leaves a pair as it is
  Layout layout = Layout::kHalves;
  int64_t first = 0;     // first rotated component of a head
  bool inverse = false;  // rotate by -phase
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.inout("x", x), v.in("positions", positions), v.in("freqs", freqs);
    v.value("first", first), v.value("inverse", inverse);
  }
};

// out = act(min(gate, limit)) * clamp(up, -limit, limit) * row_weight; limit <= 0 does not clamp.
// silu(z) = z / (1 + exp(-z)); gelu_tanh(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))
struct Glu {
  static constexpr std::string_view kName = "glu";
  enum class Act { kSilu, kGeluTanh };
  Tensor out;         // f32 [..., d], may be gate
  Tensor gate;        // f32 [..., d]
  Tensor up;          // f32 [..., d]
  Tensor row_weight;  // f32 [rows], or absent for 1
  Act act = Act::kSilu;
  float limit = 0.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("gate", gate), v.in("up", up);
    if (row_weight) v.in("row_weight", row_weight);
    v.value("limit", limit);
  }
};

// out = (a + b) * factor
struct Add {
  static constexpr std::string_view kName = "add";
  Tensor out;  // f32 [..., d], may be a or b
  Tensor a;    // f32 [..., d]
  Tensor b;    // f32 [..., d]
  float factor = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("a", a), v.in("b", b), v.value("factor", factor);
  }
};

// x *= factor * by[0]
struct Scale {
  static constexpr std::string_view kName = "scale";
  Tensor x;   // f32 [..., d], in place
  Tensor by;  // f32 [1], or absent for 1
  float factor = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.inout("x", x);
    if (by) v.in("by", by);
    v.value("factor", factor);
  }
};

// x = cap * tanh(x / cap)
struct SoftCap {
  static constexpr std::string_view kName = "soft_cap";
  Tensor x;  // f32 [..., d], in place
  float cap = 0.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.inout("x", x), v.value("cap", cap);
  }
};

// out[t] = index of the largest x[t, :], the lowest on ties. A row with a non-finite maximum raises
// Status::kNonFinite and gives 0.
struct ArgMax {
  static constexpr std::string_view kName = "arg_max";
  Tensor out;  // i32 [n_rows]
  Tensor x;    // f32 [n_rows, d]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x);
  }
};

// out[r, :] = x[rows[r], :]
struct GatherRows {
  static constexpr std::string_view kName = "gather_rows";
  Tensor out;   // f32 [n, d] or [n, s, d]
  Tensor x;     // f32 [n_tokens, ...same]
  Tensor rows;  // i32 [n], each in [0, n_tokens)
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.in("rows", rows);
  }
};

// Rounds values to the grid of a small float and back, block by block with a power-of-two scale: the rounding
// points of models trained with quantized activations. Results are rounded to bf16 (exact for both grids).
// kFp8: a = max(|v|, 1e-4), s = 2^ceil(log2(a / 448)), v' = e4m3(clamp(v / s)) * s
// kFp4: a = max(|v|, 6 * 2^-126), s = 2^ceil(log2(a / 6)), v' = e2m1(v / s) * s
struct RoundTrip {
  static constexpr std::string_view kName = "round_trip";
  enum class Grid { kFp8, kFp4 };
  Tensor out;  // f32 [..., d], may be x
  Tensor x;    // f32 [..., d]
  Grid grid = Grid::kFp8;
  int64_t block = 0;  // values per scale; a last block may be shorter
  int64_t count = 0;  // the first `count` values of each row are rounded, the rest copied
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.value("block", block), v.value("count", count);
  }
};

// Sylvester-Hadamard transform of the innermost dimension (a power of two), times d^-1/2, in place.
struct Hadamard {
  static constexpr std::string_view kName = "hadamard";
  Tensor x;  // f32 [..., d], in place
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.inout("x", x);
  }
};

}  // namespace synod
