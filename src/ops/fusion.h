// Fusion planning: which projections of a layer run as one op. Our fused ops take the matrices where they
// lie, so a fusion never costs a second copy of weights; the budget exists for backends that re-lay.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quant/matrix.h"

namespace synod {

enum class FusionMode { kAuto, kOn, kOff };

struct FusionCandidate {
  int64_t layer = 0;
  std::string_view kind;                 // "qkv", "gate_up", "expert_gate_up", ...
  std::span<const Matrix* const> parts;  // matrices with the same input
};

struct FusionDecision {
  int64_t layer = 0;
  std::string kind;
  bool fused = false;
  int64_t extra_bytes = 0;
  std::string reason;  // when not fused
};

class FusionPlan {
 public:
  FusionPlan() = default;
  // kAuto fuses parts of one storage and type (others would need two kernels); kOn fuses whatever shares
  // n_in.
  FusionPlan(FusionMode mode, std::span<const FusionCandidate> candidates, int64_t budget_bytes);
  bool fused(int64_t layer, std::string_view kind) const;
  const std::vector<FusionDecision>& decisions() const { return decisions_; }
  std::string summary() const;  // "qkv 30/30 layers, gate_up 30/30; 0 B extra of 0 B budget"

 private:
  FusionMode mode_ = FusionMode::kAuto;
  int64_t budget_ = 0;
  std::vector<FusionDecision> decisions_;
};

}  // namespace synod
