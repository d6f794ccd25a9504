// Glu.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ref/ref_backend.h"

namespace synod {
namespace {

double silu(double z) { return z / (1.0 + std::exp(-z)); }

double gelu_tanh(double z) {
  const double root = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * z * (1.0 + std::tanh(root * (z + 0.044715 * z * z * z)));
}

}  // namespace

void RefBackend::run(const Glu& op) {
  const int64_t d = op.gate.inner();
  // min and clamp keep a NaN, so that it reaches the check of the next decision.
  const bool clamped = op.limit > 0.0F;
  for (int64_t r = 0; r < op.gate.rows(); ++r) {
    const float* gate = op.gate.row_as<const float>(r);
    const float* up = op.up.row_as<const float>(r);
    float* out = op.out.row_as<float>(r);
    const double weight =
        op.row_weight
            ? op.row_weight.row_as<const float>(r / op.row_weight.inner())[r % op.row_weight.inner()]
            : 1.0F;
    for (int64_t i = 0; i < d; ++i) {
      const double g = clamped ? std::min(gate[i], op.limit) : gate[i];
      const double u = clamped ? std::clamp(up[i], -op.limit, op.limit) : up[i];
      out[i] = static_cast<float>((op.act == Glu::Act::kSilu ? silu(g) : gelu_tanh(g)) * u * weight);
    }
  }
}

}  // namespace synod
