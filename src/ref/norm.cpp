// RmsNorm.
#include <cmath>

#include "ref/lanes.h"
#include "ref/ref_backend.h"

namespace synod {

void RefBackend::run(const RmsNorm& op) {
  const int64_t d = op.x.inner();
  const float* weight = op.weight ? op.weight.as<const float>() : nullptr;
  for (int64_t r = 0; r < op.x.rows(); ++r) {
    const float* x = op.x.row_as<const float>(r);
    float* out = op.out.row_as<float>(r);
    const double mean = ref::dot(x, x, d) / static_cast<double>(d);
    const double factor = op.factor / std::sqrt(mean + op.eps);
    for (int64_t i = 0; i < d; ++i) {
      const double w = weight == nullptr ? 1.0 : weight[i];
      out[i] = static_cast<float>(x[i] * factor * w);
    }
  }
}

}  // namespace synod
