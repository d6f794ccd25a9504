#include "ops/expert_route.h"

namespace synod {

std::string_view name(ExpertRoute route) {
  switch (route) {
    case ExpertRoute::kOneRow:
      return "one-row";
    case ExpertRoute::kGrouped:
      return "grouped";
    case ExpertRoute::kPaired:
      return "paired";
  }
  return "";
}

ExpertRoute expert_route(const ExpertRouteQuery& query) {
  // Expected rows of one expert under uniform routing, times n_experts to stay in integers.
  const int64_t rows = query.n_tokens * query.n_experts_used;
  if (query.device == "ref") {
    // The reference decodes a weight row once per call: grouping pays as soon as an expert may be met twice.
    const int64_t threshold = query.threshold > 0 ? query.threshold * query.n_experts : 2;
    return query.n_tokens >= 2 && rows >= threshold ? ExpertRoute::kGrouped : ExpertRoute::kOneRow;
  }
  const int64_t threshold = query.threshold > 0 ? query.threshold : 1;
  if (rows >= threshold * query.n_experts) return ExpertRoute::kGrouped;
  return query.gate_up_alike ? ExpertRoute::kPaired : ExpertRoute::kOneRow;
}

}  // namespace synod
