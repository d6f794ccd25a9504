// The operand visitor protocol of op structs: `op.visit(v)` calls one method per operand or value. Derive
// from OperandVisitor (CRTP-free: shadow what you need) to count bytes, copy outputs or print a plan.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "base/tensor.h"
#include "ops/batch.h"
#include "ops/cache_rows.h"
#include "quant/matrix.h"

namespace synod {

struct OperandVisitor {
  void out(std::string_view, const Tensor&) {}
  void in(std::string_view, const Tensor&) {}
  void inout(std::string_view, const Tensor&) {}
  void weight(std::string_view, const Matrix&) {}
  void rows_of(std::string_view, const Matrix&, int64_t /*n_rows*/) {}
  // n_tokens tokens use k experts each: at most min(n_tokens * k, n_experts) of them are read.
  void experts(std::string_view, std::span<const Matrix>, int64_t /*n_tokens*/, int64_t /*k*/) {}
  // Rows read: per sequence, all up to the batch's end, or the window's; `ratio` tokens per row.
  void cache_in(std::string_view, const CacheRows&, const BatchView&, int64_t /*window*/, int64_t /*ratio*/) {
  }
  void cache_out(std::string_view, const CacheRows&, int64_t /*n_rows*/) {}
  void value(std::string_view, double) {}
};

// Bytes an op reads and writes once, weights as stored.
struct ByteCounter : OperandVisitor {
  int64_t weights = 0;
  int64_t other = 0;

  void out(std::string_view, const Tensor& t) { other += t.bytes(); }
  void in(std::string_view, const Tensor& t) { other += t.bytes(); }
  void inout(std::string_view, const Tensor& t) { other += 2 * t.bytes(); }
  void weight(std::string_view, const Matrix& m) { weights += m.bytes(); }
  void rows_of(std::string_view, const Matrix& m, int64_t n) { weights += m.rows(0, 1).bytes() * n; }
  void experts(std::string_view, std::span<const Matrix> e, int64_t n_tokens, int64_t k) {
    if (!e.empty()) weights += std::min(n_tokens * k, static_cast<int64_t>(e.size())) * e[0].bytes();
  }
  void cache_in(std::string_view, const CacheRows& rows, const BatchView& batch, int64_t window,
                int64_t ratio) {
    for (int64_t s = 0; s < batch.n_sequences(); ++s) {
      const int64_t all = batch.total(s) / ratio;
      other += (window > 0 ? std::min(all, window + batch.new_tokens(s) - 1) : all) * rows.row_bytes;
    }
  }
  void cache_out(std::string_view, const CacheRows& rows, int64_t n) { other += n * rows.row_bytes; }
};

// Arithmetic of an op, a multiply-add as two: products with weights, and scores and values of attention. What
// else an op computes is not counted.
struct FlopCounter : OperandVisitor {
  double flops = 0.0;

  void out(std::string_view, const Tensor& t) { out_ = t; }
  void weight(std::string_view, const Matrix& m) {
    flops += 2.0 * static_cast<double>(m.n_in) * static_cast<double>(out_.size());
  }
  void experts(std::string_view, std::span<const Matrix> e, int64_t n_tokens, int64_t k) {
    if (e.empty()) return;
    flops += 2.0 * static_cast<double>(n_tokens * k) * static_cast<double>(e[0].n_out * e[0].n_in);
  }
  void cache_in(std::string_view, const CacheRows&, const BatchView& batch, int64_t window, int64_t ratio) {
    double visible = 0.0, tokens = 0.0;
    for (int64_t s = 0; s < batch.n_sequences(); ++s) {
      for (int64_t i = 0; i < batch.new_tokens(s); ++i) {
        const int64_t all = (batch.past[static_cast<size_t>(s)] + i + 1) / ratio;
        visible += static_cast<double>(window > 0 ? std::min(all, window) : all);
      }
      tokens += static_cast<double>(batch.new_tokens(s));
    }
    flops += 2.0 * visible * static_cast<double>(out_.size()) / std::max(tokens, 1.0);
  }

 private:
  Tensor out_;  // the output visited last
};

}  // namespace synod
