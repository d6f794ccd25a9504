// The online softmax over cached rows that Attention and SparseAttention share.
//
// Order of operations, the same for every batch, tile and thread count: an index space (positions, compressed
// rows, or places of a list) is cut at multiples of 1024 into segments and of 64 into chunks. A segment
// starts from an empty state and takes its chunks in ascending order; its state is then merged into the query
// row's. Rows that a query does not see are never used: they add exactly nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/vec_table.h"
#include "ops/cache_rows.h"

namespace synod::cpu {

inline constexpr int64_t kSegmentKeys = 1024;
inline constexpr int64_t kMaxTileRows = 64;

// Keys and values of one sequence and key/value head. Index i is row list[i], or row i without a list.
struct KeySource {
  const CacheRows* keys = nullptr;
  const CacheRows* values = nullptr;  // may be `keys`: the values are the keys
  int64_t seq = 0;
  int64_t offset = 0;  // first value of the head in a row
  const int32_t* list = nullptr;
};

// What one query row has gathered: out = o / l.
struct States {
  std::vector<float> m, l, o;  // [rows], [rows], [rows, d]
  void clear(int64_t n_rows, int64_t d);
};

// Query rows of neighbouring tokens of a sequence, `rows_per_token` for each.
class AttentionTile {
 public:
  void start(const VecTable& vec, int64_t d, float scale, int64_t rows_per_token);
  void add_row(const float* q, float* out) { q_.push_back(q), out_.push_back(out); }
  // Adds the rows [first[t], end[t]) of token t to its states.
  void attend(const KeySource& source, const std::vector<int64_t>& first, const std::vector<int64_t>& end);
  // Writes the outputs. `sinks` has one logit per row of a token, or is null.
  void finish(const float* sinks);

 private:
  void prepare();
  void attend_chunk(const KeySource& source, int64_t chunk, const std::vector<int64_t>& first,
                    const std::vector<int64_t>& end);
  // Pointers to the rows of indices chunk + [lo, hi) as f32, at [lo, hi) of `out`.
  void load(const CacheRows& rows, const KeySource& source, int64_t chunk, int64_t lo, int64_t hi,
            std::vector<float>& buffer, const float** out);
  void add_values(const float* const* values, int64_t row, int64_t n_rows, int64_t lo, int64_t hi);

  const VecTable* vec_ = nullptr;
  int64_t d_ = 0, rows_per_token_ = 0;
  float scale_ = 1.0F;
  bool ready_ = false;
  std::vector<const float*> q_;
  std::vector<float*> out_;
  States total_, part_;
  std::vector<float> scores_;      // [rows, 64]
  std::vector<float> correction_;  // [rows]
  std::vector<float> key_buffer_, value_buffer_, decoded_;
};

}  // namespace synod::cpu
