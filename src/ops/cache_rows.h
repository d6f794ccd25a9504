// How ops address the cache: rows by absolute index, through each sequence's page table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace synod {

// Page table of one sequence for one group and layer. A page that left the window is null; reading it is a
// bug.
struct RowTable {
  std::span<std::byte* const> pages;
};

// The rows of one row group and one layer, for every sequence of the batch. Row r of sequence s is at
// pages[r / rows_per_page] + (r % rows_per_page) * row_bytes; there are no rings, so kernels never wrap.
struct CacheRows {
  std::string_view name;     // of the row group, for messages
  DType type = DType::kF32;  // stored type of a row's values
  int64_t row_dim = 0;       // values per row
  int64_t row_bytes = 0;     // bytes per row
  int64_t rows_per_page = 1;
  std::span<const RowTable> sequences;  // [n_sequences]; empty in a dry run

  explicit operator bool() const { return row_dim > 0; }
  std::byte* row(int64_t seq, int64_t index) const {
    const RowTable& table = sequences[static_cast<size_t>(seq)];
    return table.pages[static_cast<size_t>(index / rows_per_page)] + index % rows_per_page * row_bytes;
  }
};

}  // namespace synod
