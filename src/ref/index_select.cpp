// IndexSelect.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ref/cache_reader.h"
#include "ref/lanes.h"
#include "ref/ref_backend.h"
#include "ref/top_k.h"

namespace synod {
namespace {

float row_score(const IndexSelect& op, int64_t t, const float* key) {
  const int64_t n_heads = op.q.dim(1);
  const float* beta = op.beta.row_as<const float>(t);
  double score = 0.0;
  for (int64_t h = 0; h < n_heads; ++h) {
    const double match = ref::dot(op.q.row_as<const float>(t * n_heads + h), key, op.q.dim(2));
    score += beta[h] * (match < 0.0 ? 0.0 : match);  // keeps a NaN
  }
  return static_cast<float>(score);
}

}  // namespace

void RefBackend::run(const IndexSelect& op) {
  const int64_t k = op.selected.dim(1);
  std::vector<float> scores;
  for (int64_t s = 0; s < op.batch->n_sequences(); ++s) {
    const int64_t past = op.batch->past[static_cast<size_t>(s)];
    const int64_t start = op.batch->row_start[static_cast<size_t>(s)];
    const int64_t total = op.batch->total(s);
    const ref::CacheReader keys(op.keys, s, 0, total / op.ratio);
    for (int64_t position = past; position < total; ++position) {
      const int64_t t = start + position - past;
      const int64_t n_visible = (position + 1) / op.ratio, n = std::min(k, n_visible);
      int32_t* selected = op.selected.row_as<int32_t>(t);
      std::fill_n(selected, k, -1);
      std::iota(selected, selected + n, 0);  // all rows, or a safe choice when a score is not finite
      if (n_visible <= k) continue;
      scores.clear();
      for (int64_t w = 0; w < n_visible; ++w) scores.push_back(row_score(op, t, keys.row(w)));
      if (std::ranges::all_of(scores, [](float v) { return std::isfinite(v); })) {
        std::ranges::copy(ref::top_k(scores, k), selected);
      } else {
        raise(Status::kNonFinite);
      }
    }
  }
}

}  // namespace synod
