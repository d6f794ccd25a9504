// Rope.
#include <cmath>
#include <vector>

#include "ref/ref_backend.h"

namespace synod {
namespace {

struct Turn {
  float cos, sin;
};

// The phase is one f32 product; its cosine and sine are those of that f32 value, rounded once.
std::vector<Turn> turns(const Rope& op, int32_t position) {
  std::vector<Turn> result;
  const float* freqs = op.freqs.as<const float>();
  for (int64_t i = 0; i < op.freqs.dim(0); ++i) {
    const float phase = static_cast<float>(position) * freqs[i];
    const auto sine = static_cast<float>(std::sin(static_cast<double>(phase)));
    result.push_back({static_cast<float>(std::cos(static_cast<double>(phase))), op.inverse ? -sine : sine});
  }
  return result;
}

}  // namespace

void RefBackend::run(const Rope& op) {
  const int64_t n_pairs = op.freqs.dim(0);
  const bool halves = op.layout == Rope::Layout::kHalves;
  const int64_t step = halves ? 1 : 2, partner = halves ? n_pairs : 1;
  const int64_t n_heads = op.x.rank == 3 ? op.x.dim(1) : 1;
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    const std::vector<Turn> turn = turns(op, op.positions.as<const int32_t>()[t]);
    for (int64_t h = 0; h < n_heads; ++h) {
      float* head = op.x.row_as<float>(t * n_heads + h) + op.first;
      for (int64_t i = 0; i < n_pairs; ++i) {
        const auto [c, s] = turn[static_cast<size_t>(i)];
        float& a = head[i * step];
        float& b = head[i * step + partner];
        const float turned_a = a * c - b * s, turned_b = b * c + a * s;
        a = turned_a;
        b = turned_b;
      }
    }
  }
}

}  // namespace synod
