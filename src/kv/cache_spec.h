// What a model keeps per sequence, as data: the engine allocates, shares, saves and restores from this alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace synod {

inline constexpr int64_t kPageTokens = 256;  // tokens per shareable page; every tokens_per_row divides it

// Rows of equal shape in some layers. Row r stands for tokens [r * tokens_per_row, (r + 1) * tokens_per_row).
struct RowGroup {
  std::string name;
  std::vector<int64_t> layers;  // layers that own such rows, ascending
  DType type = DType::kF32;     // of the values
  int64_t row_dim = 0;          // values per row
  int64_t row_bytes = 0;        // bytes per row
  int64_t tokens_per_row = 1;
  int64_t window = 0;  // rows that a later token may still read, own row included; 0 = all
  // Rows before a page boundary that must be kept with it to resume exactly there (<= window - 1). For
  // unbounded groups 0: their pages themselves are kept.
  int64_t boundary_rows = 0;
  int64_t rows_per_page = 0;  // filled by make_group

  int64_t page_bytes() const { return rows_per_page * row_bytes; }  // of one layer
};

// Completes a group: row_bytes from the type, rows_per_page so that a page covers at most kPageTokens tokens
// and, for windows shorter than that, little more than the window.
RowGroup make_group(RowGroup group);

struct CacheSpec {
  std::vector<RowGroup> groups;

  // Most bytes of one sequence of up to `n_tokens` tokens that grows by calls of `n_call`, all groups and
  // layers, rounded up to pages.
  int64_t bytes(int64_t n_tokens, int64_t n_call = 1) const;
  std::string describe() const;  // one line per group
};

// Rows beyond the window that are kept so that a sequence can be rolled back.
inline constexpr int64_t kRollbackSlack = 16;  // tokens

}  // namespace synod
