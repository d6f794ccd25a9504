// RouteSoftmax, RouteScores, RouteHash.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "ref/ref_backend.h"
#include "ref/top_k.h"

namespace synod {
namespace {

std::span<const float> values(const Tensor& t, int64_t row) {
  return {t.row_as<const float>(row), static_cast<size_t>(t.inner())};
}

bool all_finite(std::span<const float> v) {
  return std::ranges::all_of(v, [](float x) { return std::isfinite(x); });
}

// sqrt(softplus(v)), in the form that neither underflows for negative nor overflows for positive v.
float score(float v) {
  const double z = v;
  return static_cast<float>(std::sqrt(std::max(z, 0.0) + std::log1p(std::exp(-std::fabs(z)))));
}

std::vector<float> softmax_weights(std::span<const float> logits, std::span<const int32_t> chosen,
                                   const Tensor& expert_scale) {
  double top = -INFINITY, sum = 0.0;
  for (const int32_t e : chosen) top = std::max(top, static_cast<double>(logits[static_cast<size_t>(e)]));
  for (const int32_t e : chosen) sum += std::exp(logits[static_cast<size_t>(e)] - top);
  std::vector<float> weights;
  for (const int32_t e : chosen) {
    const double scale = expert_scale ? expert_scale.as<const float>()[e] : 1.0F;
    weights.push_back(static_cast<float>(std::exp(logits[static_cast<size_t>(e)] - top) / sum * scale));
  }
  return weights;
}

std::vector<float> score_weights(std::span<const float> logits, std::span<const int32_t> chosen,
                                 float scale) {
  double sum = 1e-20;
  for (const int32_t e : chosen) sum += score(logits[static_cast<size_t>(e)]);
  std::vector<float> weights;
  for (const int32_t e : chosen) {
    weights.push_back(static_cast<float>(score(logits[static_cast<size_t>(e)]) / sum * scale));
  }
  return weights;
}

// Writes the slots of a token; all zero, and false, when a weight is not finite or nothing was chosen.
bool write_slots(const Tensor& ids, const Tensor& weights, int64_t token, std::span<const int32_t> chosen,
                 std::span<const float> chosen_weights) {
  const int64_t k = ids.dim(1);
  int32_t* id = ids.row_as<int32_t>(token);
  float* weight = weights.row_as<float>(token);
  if (chosen.empty() || !all_finite(chosen_weights)) {
    std::fill_n(id, k, 0);
    std::fill_n(weight, k, 0.0F);
    return false;
  }
  std::ranges::copy(chosen, id);
  std::ranges::copy(chosen_weights, weight);
  return true;
}

}  // namespace

void RefBackend::run(const RouteSoftmax& op) {
  for (int64_t t = 0; t < op.ids.dim(0); ++t) {
    const std::span<const float> logits = values(op.logits, t);
    std::vector<int32_t> chosen;
    if (all_finite(logits)) chosen = ref::top_k(logits, op.ids.dim(1));
    const std::vector<float> weights = softmax_weights(logits, chosen, op.expert_scale);
    if (!write_slots(op.ids, op.weights, t, chosen, weights)) raise(Status::kNonFinite);
  }
}

void RefBackend::run(const RouteScores& op) {
  const float* bias = op.bias.as<const float>();
  for (int64_t t = 0; t < op.ids.dim(0); ++t) {
    const std::span<const float> logits = values(op.logits, t);
    std::vector<float> biased;
    for (size_t e = 0; e < logits.size(); ++e) biased.push_back(score(logits[e]) + bias[e]);
    std::vector<int32_t> chosen;
    if (all_finite(logits) && all_finite(biased)) chosen = ref::top_k(biased, op.ids.dim(1));
    const std::vector<float> weights = score_weights(logits, chosen, op.scale);
    if (!write_slots(op.ids, op.weights, t, chosen, weights)) raise(Status::kNonFinite);
  }
}

void RefBackend::run(const RouteHash& op) {
  const int64_t k = op.ids.dim(1), n_experts = op.logits.dim(1);
  for (int64_t t = 0; t < op.ids.dim(0); ++t) {
    const std::span<const float> logits = values(op.logits, t);
    const int64_t token = op.token_ids.as<const int32_t>()[t];
    std::vector<int32_t> chosen;
    if (token >= 0 && token < op.table.dim(0)) {
      const int32_t* row = op.table.row_as<const int32_t>(token);
      chosen.assign(row, row + k);
    }
    const bool in_range =
        !chosen.empty() && std::ranges::all_of(chosen, [&](int32_t e) { return e >= 0 && e < n_experts; });
    if (!in_range || !all_finite(logits)) {
      write_slots(op.ids, op.weights, t, {}, {});
      raise(in_range ? Status::kNonFinite : Status::kBadId);
      continue;
    }
    std::ranges::sort(chosen);
    const std::vector<float> weights = score_weights(logits, chosen, op.scale);
    if (!write_slots(op.ids, op.weights, t, chosen, weights)) raise(Status::kNonFinite);
  }
}

}  // namespace synod
