// ExpertLinear and CombineExperts.
#include <algorithm>
#include <vector>

#include "ref/products.h"
#include "ref/ref_backend.h"

namespace synod {

void RefBackend::run(const ExpertLinear& op) {
  const int64_t n_tokens = op.ids.dim(0), k = op.ids.dim(1), n_out = op.out.dim(2);
  const auto n_experts = static_cast<int64_t>(op.experts.size());
  const ref::WideRows x(op.x);
  // Slots by expert, so that each expert is decoded once per call.
  std::vector<std::vector<int64_t>> slots(op.experts.size());
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t s = 0; s < k; ++s) {
      const int64_t expert = op.ids.row_as<const int32_t>(t)[s];
      if (expert >= 0 && expert < n_experts) {
        slots[static_cast<size_t>(expert)].push_back(t * k + s);
      } else {
        std::fill_n(op.out.row_as<float>(t * k + s), n_out, 0.0F);
        raise(Status::kBadId);
      }
    }
  }
  for (size_t e = 0; e < slots.size(); ++e) {
    if (slots[e].empty()) continue;
    std::vector<const double*> inputs;
    std::vector<float*> outputs;
    for (const int64_t slot : slots[e]) {
      inputs.push_back(x.row(op.x.rank == 3 ? slot : slot / k));
      outputs.push_back(op.out.row_as<float>(slot));
    }
    ref::multiply(op.experts[e], inputs,
                  [&](size_t i, int64_t o, double sum) { outputs[i][o] = static_cast<float>(sum); });
  }
}

void RefBackend::run(const CombineExperts& op) {
  const int64_t k = op.x.dim(1), d = op.x.dim(2);
  std::vector<double> sum(static_cast<size_t>(d));
  for (int64_t t = 0; t < op.x.dim(0); ++t) {
    std::ranges::fill(sum, 0.0);
    for (int64_t s = 0; s < k; ++s) {
      const float* x = op.x.row_as<const float>(t * k + s);
      const double weight = op.weights ? op.weights.row_as<const float>(t)[s] : 1.0F;
      for (int64_t i = 0; i < d; ++i) sum[static_cast<size_t>(i)] += weight * x[i];
    }
    const float* shared = op.shared ? op.shared.row_as<const float>(t) : nullptr;
    float* out = op.out.row_as<float>(t);
    for (int64_t i = 0; i < d; ++i) {
      const double total = sum[static_cast<size_t>(i)] + (shared == nullptr ? 0.0F : shared[i]);
      out[i] = static_cast<float>(total);
    }
  }
}

}  // namespace synod
