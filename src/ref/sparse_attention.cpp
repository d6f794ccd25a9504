// SparseAttention.
#include <algorithm>
#include <optional>
#include <vector>

#include "ref/cache_reader.h"
#include "ref/ref_backend.h"
#include "ref/softmax_sum.h"

namespace synod {
namespace {

// Appends the compressed rows that token `t` at `position` sees.
void add_compressed(const SparseAttention& op, const ref::CacheReader& rows, int64_t t, int64_t position,
                    std::vector<const float*>& keys) {
  const int64_t n_visible = (position + 1) / op.ratio;
  if (!op.selected) {
    for (int64_t w = 0; w < n_visible; ++w) keys.push_back(rows.row(w));
    return;
  }
  const int32_t* selected = op.selected.row_as<const int32_t>(t);
  for (int64_t i = 0; i < op.selected.dim(1) && selected[i] >= 0; ++i) {
    SYNOD_ASSERT(selected[i] < n_visible);
    keys.push_back(rows.row(selected[i]));
  }
}

}  // namespace

void RefBackend::run(const SparseAttention& op) {
  const int64_t n_heads = op.q.dim(1), d = op.q.dim(2);
  const auto first_visible = [&](int64_t position) { return std::max<int64_t>(0, position - op.window + 1); };
  std::vector<const float*> keys;
  for (int64_t s = 0; s < op.batch->n_sequences(); ++s) {
    const int64_t past = op.batch->past[static_cast<size_t>(s)];
    const int64_t start = op.batch->row_start[static_cast<size_t>(s)];
    const int64_t total = op.batch->total(s);
    if (total == past) continue;
    const ref::CacheReader window(op.window_rows, s, first_visible(past), total);
    std::optional<ref::CacheReader> compressed;
    if (op.compressed) compressed.emplace(op.compressed, s, 0, total / op.ratio);
    for (int64_t position = past; position < total; ++position) {
      const int64_t t = start + position - past;
      keys.clear();
      for (int64_t j = first_visible(position); j <= position; ++j) keys.push_back(window.row(j));
      if (compressed) add_compressed(op, *compressed, t, position, keys);
      for (int64_t h = 0; h < n_heads; ++h) {
        ref::attend(op.q.row_as<const float>(t * n_heads + h), keys, keys, op.scale,
                    op.sinks.as<const float>()[h], d, op.out.row_as<float>(t * n_heads + h));
      }
    }
  }
}

}  // namespace synod
