// Attention.
#include <algorithm>
#include <vector>

#include "ref/cache_reader.h"
#include "ref/ref_backend.h"
#include "ref/softmax_sum.h"

namespace synod {

void RefBackend::run(const Attention& op) {
  const int64_t n_heads = op.q.dim(1), d = op.q.dim(2), heads_per_kv = n_heads / op.n_kv_heads;
  const auto first_visible = [&](int64_t position) {
    return op.window > 0 ? std::max<int64_t>(0, position - op.window + 1) : 0;
  };
  std::vector<const float*> keys, values;
  for (int64_t s = 0; s < op.batch->n_sequences(); ++s) {
    const int64_t past = op.batch->past[static_cast<size_t>(s)];
    const int64_t start = op.batch->row_start[static_cast<size_t>(s)];
    const int64_t total = op.batch->total(s);
    if (total == past) continue;
    const ref::CacheReader k(op.k, s, first_visible(past), total), v(op.v, s, first_visible(past), total);
    for (int64_t position = past; position < total; ++position) {
      const int64_t t = start + position - past;
      for (int64_t h = 0; h < n_heads; ++h) {
        const int64_t offset = h / heads_per_kv * d;
        keys.clear(), values.clear();
        for (int64_t j = first_visible(position); j <= position; ++j) {
          keys.push_back(k.row(j) + offset);
          values.push_back(v.row(j) + offset);
        }
        ref::attend(op.q.row_as<const float>(t * n_heads + h), keys, values, op.scale, ref::kNoSink, d,
                    op.out.row_as<float>(t * n_heads + h));
      }
    }
  }
}

}  // namespace synod
