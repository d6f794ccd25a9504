// Which rows and pages of a group a sequence of a given length holds. The one place for window arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/cache_spec.h"

namespace synod {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of the first `n_tokens` tokens, the open one included.
inline int64_t row_count(const RowGroup& group, int64_t n_tokens) {
  return divide_up(n_tokens, group.tokens_per_row);
}

inline int64_t page_count(const RowGroup& group, int64_t n_tokens) {
  return divide_up(row_count(group, n_tokens), group.rows_per_page);
}

// First row that the token at position `length`, or a later one, may read.
inline int64_t first_row_read(const RowGroup& group, int64_t length) {
  if (group.window == 0) return 0;
  return std::max<int64_t>(0, length / group.tokens_per_row - group.window + 1);
}

inline int64_t first_page_read(const RowGroup& group, int64_t length) {
  return first_row_read(group, length) / group.rows_per_page;
}

// First page that a sequence of `length` tokens keeps, so that it can be rolled back by kRollbackSlack
// tokens.
inline int64_t first_page_kept(const RowGroup& group, int64_t length) {
  return first_page_read(group, std::max<int64_t>(0, length - kRollbackSlack));
}

// Most pages that a sequence of up to `n_tokens` tokens keeps while calls of `n_call` tokens run, wherever
// its window lies on page borders: windowed groups keep every row of a call until it is over.
inline int64_t most_pages(const RowGroup& group, int64_t n_tokens, int64_t n_call) {
  const int64_t all = page_count(group, n_tokens);
  if (group.window == 0) return all;
  const int64_t kept_rows = group.window + divide_up(kRollbackSlack + n_call - 1, group.tokens_per_row);
  return std::min(all, divide_up(kept_rows - 1, group.rows_per_page) + 1);
}

}  // namespace synod
