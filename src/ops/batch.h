// One forward call: the new tokens of one or more sequences, laid end to end (a ragged batch).
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor.h"

namespace synod {

// Host arrays; a device backend copies what it needs. Token i of sequence s (row_start[s] <= i <
// row_start[s + 1]) stands at absolute position past[s] + i - row_start[s].
struct BatchView {
  Tensor ids;                          // i32 [n_tokens]
  Tensor positions;                    // i32 [n_tokens]
  std::span<const int64_t> row_start;  // [n_sequences + 1], from 0 to n_tokens
  std::span<const int64_t> past;       // [n_sequences] tokens that are already in the cache

  int64_t n_tokens() const { return ids.dim(0); }
  int64_t n_sequences() const { return static_cast<int64_t>(past.size()); }
  int64_t new_tokens(int64_t seq) const {
    return row_start[static_cast<size_t>(seq) + 1] - row_start[static_cast<size_t>(seq)];
  }
  // Length of a sequence after this call.
  int64_t total(int64_t seq) const { return past[static_cast<size_t>(seq)] + new_tokens(seq); }
};

// Blocks of `ratio` tokens that this call completes, over all sequences.
int64_t closed_blocks(const BatchView& batch, int64_t ratio);

}  // namespace synod
