// Matrix products with stored weights, and the embedding look-up that reads the same matrices by row.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "base/tensor.h"
#include "quant/matrix.h"

namespace synod {

// out[t, o] = sum_i x[t, i] * weight[o, i]
struct Linear {
  static constexpr std::string_view kName = "linear";
  Tensor out;     // f32 [n_tokens, n_out]
  Tensor x;       // f32 [n_tokens, n_in]
  Matrix weight;  // [n_out, n_in]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.weight("weight", weight);
  }
};

// Several products of one input: reads and quantizes x once. Lowers to one Linear each.
struct Projections {
  static constexpr std::string_view kName = "projections";
  struct Part {
    Tensor out;     // f32 [n_tokens, n_out]
    Matrix weight;  // [n_out, n_in]
  };
  Tensor x;                   // f32 [n_tokens, n_in]
  std::array<Part, 4> parts;  // the first n_parts are used
  int n_parts = 0;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    for (int i = 0; i < n_parts; ++i) v.out("out", parts[static_cast<size_t>(i)].out);
    v.in("x", x);
    for (int i = 0; i < n_parts; ++i) v.weight("weight", parts[static_cast<size_t>(i)].weight);
  }
};

// out[t, g, o] = sum_i x[t, g, i] * weight[g * n_out + o, i]: each group of inputs has its own rows.
// Lowers to one Linear per group.
struct GroupedLinear {
  static constexpr std::string_view kName = "grouped_linear";
  Tensor out;     // f32 [n_tokens, n_groups, n_out]
  Tensor x;       // f32 [n_tokens, n_groups, n_in]
  Matrix weight;  // [n_groups * n_out, n_in]
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("x", x), v.weight("weight", weight);
  }
};

// out[t, i] = table[ids[t], i] * scale. An id outside [0, n_out) raises Status::kBadId and gives a zero row.
struct Embed {
  static constexpr std::string_view kName = "embed";
  Tensor out;    // f32 [n_tokens, n_in]
  Tensor ids;    // i32 [n_tokens]
  Matrix table;  // [vocabulary, n_in]
  float scale = 1.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.in("ids", ids), v.rows_of("table", table, ids.dim(0)), v.value("scale", scale);
  }
};

}  // namespace synod
