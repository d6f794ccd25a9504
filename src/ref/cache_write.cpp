// CacheWrite.
#include <algorithm>
#include <cmath>
#include <span>

#include "quant/codec.h"
#include "ref/ref_backend.h"

namespace synod {

void RefBackend::run(const CacheWrite& op) {
  const CacheRows& rows = op.rows;
  int64_t i = 0;
  for (int64_t s = 0; s < op.batch->n_sequences(); ++s) {
    const int64_t first = op.batch->past[static_cast<size_t>(s)] / op.tokens_per_row;
    const int64_t end = op.batch->total(s) / op.tokens_per_row;
    for (int64_t r = first; r < end; ++r, ++i) {
      SYNOD_ASSERT(rows.sequences[static_cast<size_t>(s)].pages[static_cast<size_t>(r / rows.rows_per_page)]);
      const std::span<const float> x(op.x.row_as<const float>(i), static_cast<size_t>(rows.row_dim));
      // A block scale cannot hold these; plain types keep them, and the next decision that they reach fails.
      if (is_block_type(rows.type) && !std::ranges::all_of(x, [](float v) { return std::isfinite(v); })) {
        std::fill_n(rows.row(s, r), rows.row_bytes, std::byte{0});
        raise(Status::kNonFinite);
        continue;
      }
      encode(rows.type, x.data(), rows.row_dim, rows.row(s, r));
    }
  }
}

}  // namespace synod
