#include "ops/fusion.h"

#include <algorithm>
#include <map>

#include "base/log.h"

namespace synod {
namespace {

// Empty when the parts may run as one op, else why not.
std::string obstacle(FusionMode mode, std::span<const Matrix* const> parts) {
  if (mode == FusionMode::kOff) return "switched off";
  if (parts.size() < 2) return "only one projection";
  const Matrix& first = *parts[0];
  for (const Matrix* part : parts) {
    if (part->n_in != first.n_in) return fmt::format("inputs differ: {} and {}", first.n_in, part->n_in);
    const bool alike = part->storage == first.storage && part->type == first.type && part->bits == first.bits;
    if (mode == FusionMode::kAuto && !alike) {
      return fmt::format("stored types differ: {} and {}", name(first.type), name(part->type));
    }
  }
  return {};
}

}  // namespace

FusionPlan::FusionPlan(FusionMode mode, std::span<const FusionCandidate> candidates, int64_t budget_bytes)
    : mode_(mode), budget_(budget_bytes) {
  for (const FusionCandidate& candidate : candidates) {
    const std::string reason = obstacle(mode, candidate.parts);
    decisions_.push_back({candidate.layer, std::string(candidate.kind), reason.empty(), 0, reason});
  }
}

bool FusionPlan::fused(int64_t layer, std::string_view kind) const {
  return std::ranges::any_of(
      decisions_, [&](const FusionDecision& d) { return d.layer == layer && d.kind == kind && d.fused; });
}

std::string FusionPlan::summary() const {
  struct Count {
    int64_t fused = 0, all = 0;
    std::string reason;
  };
  std::map<std::string, Count> kinds;
  int64_t extra = 0;
  for (const FusionDecision& d : decisions_) {
    Count& count = kinds[d.kind];
    ++count.all;
    count.fused += d.fused ? 1 : 0;
    if (!d.fused) count.reason = d.reason;
    extra += d.extra_bytes;
  }
  std::string text;
  for (const auto& [kind, count] : kinds) {
    text += fmt::format("{}{} {}/{} layers", text.empty() ? "" : ", ", kind, count.fused, count.all);
    if (!count.reason.empty()) text += fmt::format(" ({})", count.reason);
  }
  return fmt::format("{}; {} extra of {} budget", text.empty() ? "nothing to fuse" : text, human_bytes(extra),
                     human_bytes(budget_));
}

}  // namespace synod
