// DeepSeek-V4's compressor: pools each closed block of tokens into one cache row.
#pragma once

#include <string_view>

#include "base/tensor.h"
#include "ops/batch.h"
#include "ops/cache_rows.h"
#include "ops/elementwise.h"

namespace synod {

// For every block w that the batch closes: per channel, softmax over the scores and weighted sum of the
// values. State rows hold values then scores of one token, [values: lanes * d | scores: lanes * d]. Without
// overlap (lanes = 1): the `ratio` tokens of block w. With overlap (lanes = 2): lane 0 of the tokens of block
// w - 1 (absent for w = 0), then lane 1 of the tokens of block w.
struct CompressPool {
  static constexpr std::string_view kName = "compress_pool";
  Tensor out;       // f32 [closed blocks, d], sequence by sequence, ascending
  CacheRows state;  // f32 rows of 2 * lanes * d, one per token, already written for this batch
  const BatchView* batch = nullptr;
  int64_t ratio = 0;
  bool overlap = false;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.out("out", out), v.cache_in("state", state, *batch, overlap ? 2 * ratio : ratio, 1);
    v.value("ratio", ratio), v.value("overlap", overlap);
  }
};

// Pool, norm, rotate at the block's first position, round, store as compressed row w.
// Lowers to CompressPool, RmsNorm, Rope, RoundTrip or Hadamard + RoundTrip, CacheWrite.
struct Compress {
  static constexpr std::string_view kName = "compress";
  enum class Round { kNone, kFp8, kHadamardFp4 };
  CacheRows rows;   // row_dim d
  CacheRows state;  // f32 rows of 2 * lanes * d
  Tensor norm;      // f32 [d]
  Tensor freqs;     // f32 [n_pairs], rotates the last 2 * n_pairs components, interleaved
  const BatchView* batch = nullptr;
  int64_t ratio = 0;
  bool overlap = false;
  Round round = Round::kNone;
  float eps = 0.0F;
  void check() const;
  template <typename V>
  void visit(V&& v) const {
    v.cache_out("rows", rows, closed_blocks(*batch, ratio));
    v.cache_in("state", state, *batch, overlap ? 2 * ratio : ratio, 1), v.in("norm", norm),
        v.in("freqs", freqs);
    v.value("ratio", ratio), v.value("overlap", overlap);
  }
};

}  // namespace synod
