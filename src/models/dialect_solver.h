// Chooses the naming scheme and one candidate per role, from names alone. Types and shapes come later.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/module_reader.h"
#include "models/weights.h"

namespace synod {

struct DialectSolution {
  int dialect = 0;
  std::vector<const Candidate*> chosen;  // one per spec; null for an absent optional role
};

// Throws kBadFile with what is missing, unexpected or ambiguous.
DialectSolution solve_dialect(const Checkpoint& checkpoint, const ModuleReader& reader,
                              std::span<const WeightSpec> specs, const DialectInfo& dialects);

// Tensors of the checkpoint that are neither in `used` nor skippable; those skipped are logged by reason.
void require_no_leftovers(const Checkpoint& checkpoint, const std::set<std::string_view>& used,
                          const DialectInfo& dialects, const std::string& architecture,
                          std::string_view dialect);

// Names of the stored tensors of a candidate: one, or one per expert.
std::vector<std::string> module_names(const Candidate& candidate, const WeightSpec& spec);

}  // namespace synod
