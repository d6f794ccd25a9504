// Which kernel runs the experts of one layer: a pure function, so that the choice can be tested and logged.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace synod {

enum class ExpertRoute {
  kOneRow,   // one row at a time: reads each chosen expert once per token
  kGrouped,  // rows sorted by expert: reads each chosen expert once per batch
  kPaired,   // one row, gate and up of an expert in one pass
};
std::string_view name(ExpertRoute route);

struct ExpertRouteQuery {
  std::string_view device;  // "ref", "cpu", "cuda"
  int64_t n_tokens = 0;
  int64_t n_experts = 0;
  int64_t n_experts_used = 0;
  DType type = DType::kF32;   // of the expert matrices
  bool gate_up_alike = true;  // gate and up have one storage and type
  int64_t threshold = 0;      // rows per expert from which grouping pays; 0 = the device's default
};
ExpertRoute expert_route(const ExpertRouteQuery& query);

}  // namespace synod
