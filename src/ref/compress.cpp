// CompressPool.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ref/cache_reader.h"
#include "ref/ref_backend.h"

namespace synod {
namespace {

struct Slot {
  const float* values;  // [d]
  const float* scores;  // [d]
};

// Slots of block `w`, oldest token first.
std::vector<Slot> slots(const CompressPool& op, const ref::CacheReader& state, int64_t w) {
  const int64_t d = op.out.dim(1), lanes = op.overlap ? 2 : 1;
  std::vector<Slot> result;
  const auto add = [&](int64_t block, int64_t lane) {
    for (int64_t t = block * op.ratio; t < (block + 1) * op.ratio; ++t) {
      const float* row = state.row(t);
      result.push_back({row + lane * d, row + (lanes + lane) * d});
    }
  };
  if (op.overlap && w > 0) add(w - 1, 0);
  add(w, lanes - 1);
  return result;
}

void pool(const std::vector<Slot>& slots, int64_t d, float* out) {
  for (int64_t i = 0; i < d; ++i) {
    double top = -INFINITY, mass = 0.0, sum = 0.0;
    for (const Slot& slot : slots) top = std::max(top, static_cast<double>(slot.scores[i]));
    for (const Slot& slot : slots) {
      const double p = std::exp(slot.scores[i] - top);
      mass += p;
      sum += p * slot.values[i];
    }
    out[i] = static_cast<float>(sum / mass);
  }
}

}  // namespace

void RefBackend::run(const CompressPool& op) {
  int64_t row = 0;
  for (int64_t s = 0; s < op.batch->n_sequences(); ++s) {
    const int64_t first = op.batch->past[static_cast<size_t>(s)] / op.ratio;
    const int64_t end = op.batch->total(s) / op.ratio;
    if (first == end) continue;
    const int64_t first_token = (op.overlap ? std::max<int64_t>(0, first - 1) : first) * op.ratio;
    const ref::CacheReader state(op.state, s, first_token, end * op.ratio);
    for (int64_t w = first; w < end; ++w)
      pool(slots(op, state, w), op.out.dim(1), op.out.row_as<float>(row++));
  }
}

}  // namespace synod
