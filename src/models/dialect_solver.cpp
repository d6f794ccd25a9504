#include "models/dialect_solver.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace synod {
namespace {

constexpr std::string_view kExpertMark = "{e}";
constexpr size_t kListed = 20;  // names per list in messages

std::string listing(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kListed) text += fmt::format(" and {} more", names.size() - kListed);
  return text;
}

// How far one dialect explains the file.
struct Attempt {
  int dialect = 0;
  std::vector<const Candidate*> chosen;
  int64_t n_found = 0;                 // roles
  std::vector<std::string> missing;    // stored names
  std::vector<std::string> ambiguous;  // sentences
};

struct Presence {
  size_t n_present = 0;
  std::vector<std::string> missing;
  bool complete() const { return missing.empty(); }
};

Presence presence(const ModuleReader& reader, const Candidate& candidate, const WeightSpec& spec) {
  Presence result;
  for (std::string& name : module_names(candidate, spec)) {
    if (reader.present(name)) {
      ++result.n_present;
    } else {
      result.missing.push_back(std::move(name));
    }
  }
  return result;
}

void try_role(const ModuleReader& reader, const WeightSpec& spec, Attempt& attempt) {
  const Candidate* chosen = nullptr;
  std::optional<Presence> nearest;  // of the incomplete candidates, the one with most experts
  for (const Candidate& candidate : spec.candidates) {
    if (candidate.dialect != attempt.dialect) continue;
    Presence found = presence(reader, candidate, spec);
    if (!found.complete()) {
      if (!nearest || found.n_present > nearest->n_present) nearest = std::move(found);
    } else if (chosen == nullptr) {
      chosen = &candidate;
    } else {
      attempt.ambiguous.push_back(
          fmt::format("{} is stored twice, as {} and as {}", spec.role, chosen->name, candidate.name));
    }
  }
  attempt.chosen.push_back(chosen);
  if (chosen != nullptr) {
    ++attempt.n_found;
  } else if (nearest && (spec.required || nearest->n_present > 0)) {
    for (std::string& name : nearest->missing) attempt.missing.push_back(std::move(name));
  } else if (spec.required) {
    attempt.missing.push_back(fmt::format("{} (which has no name here)", spec.role));
  }
}

// Fused candidates are missed once per part.
void drop_repeats(std::vector<std::string>& names) {
  std::set<std::string> seen;
  std::erase_if(names, [&](const std::string& name) { return !seen.insert(name).second; });
}

Attempt try_dialect(const ModuleReader& reader, std::span<const WeightSpec> specs, int dialect) {
  Attempt attempt;
  attempt.dialect = dialect;
  for (const WeightSpec& spec : specs) try_role(reader, spec, attempt);
  drop_repeats(attempt.missing);
  return attempt;
}

bool same_choice(const Attempt& a, const Attempt& b) {
  return std::equal(a.chosen.begin(), a.chosen.end(), b.chosen.begin(), b.chosen.end(),
                    [](const Candidate* x, const Candidate* y) {
                      if (x == nullptr || y == nullptr) return x == y;
                      return x->name == y->name && x->part == y->part && x->n_parts == y->n_parts;
                    });
}

std::vector<std::string> leftovers(const Checkpoint& checkpoint, const std::set<std::string_view>& used,
                                   const DialectInfo& dialects, std::map<std::string, int64_t>* skipped) {
  std::vector<std::string> result;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (used.contains(name)) continue;
    const char* reason = dialects.skip_reason ? dialects.skip_reason(name) : nullptr;
    if (reason == nullptr) {
      result.emplace_back(name);
    } else if (skipped != nullptr) {
      ++(*skipped)[reason];
    }
  }
  return result;
}

std::set<std::string_view> relatives(const ModuleReader& reader, std::span<const WeightSpec> specs,
                                     int dialect) {
  std::set<std::string_view> names;
  for (const WeightSpec& spec : specs) {
    for (const Candidate& candidate : spec.candidates) {
      if (candidate.dialect != dialect) continue;
      for (const std::string& name : module_names(candidate, spec)) {
        for (const std::string_view found : reader.relatives(name)) names.insert(found);
      }
    }
  }
  return names;
}

[[noreturn]] void refuse_incomplete(const Checkpoint& checkpoint, const ModuleReader& reader,
                                    std::span<const WeightSpec> specs, const DialectInfo& dialects,
                                    const std::vector<Attempt>& attempts) {
  const Attempt& best =
      *std::max_element(attempts.begin(), attempts.end(),
                        [](const Attempt& a, const Attempt& b) { return a.n_found < b.n_found; });
  const auto unexpected = leftovers(checkpoint, relatives(reader, specs, best.dialect), dialects, nullptr);
  std::string extra;
  if (!unexpected.empty()) extra = fmt::format("; {} unexpected: {}", unexpected.size(), listing(unexpected));
  bad_file("{}: the tensors match no known naming; the nearest is {}, with {} missing: {}{}",
           reader.architecture(), dialects.names[static_cast<size_t>(best.dialect)], best.missing.size(),
           listing(best.missing), extra);
}

}  // namespace

std::vector<std::string> module_names(const Candidate& candidate, const WeightSpec& spec) {
  const size_t mark = candidate.name.find(kExpertMark);
  if (mark == std::string::npos) return {candidate.name};
  SYNOD_ASSERT(spec.kind == WeightSpec::Kind::kExperts);
  std::vector<std::string> names;
  for (int64_t e = 0; e < spec.shape[0]; ++e) {
    std::string name = candidate.name;
    names.push_back(name.replace(mark, kExpertMark.size(), std::to_string(e)));
  }
  return names;
}

DialectSolution solve_dialect(const Checkpoint& checkpoint, const ModuleReader& reader,
                              std::span<const WeightSpec> specs, const DialectInfo& dialects) {
  SYNOD_ASSERT(!dialects.names.empty() && !specs.empty());
  std::vector<Attempt> attempts;
  for (int d = 0; d < static_cast<int>(dialects.names.size()); ++d) {
    attempts.push_back(try_dialect(reader, specs, d));
  }
  const Attempt* solution = nullptr;
  for (const Attempt& attempt : attempts) {
    if (!attempt.missing.empty()) continue;
    if (solution == nullptr) {
      solution = &attempt;
    } else if (!same_choice(*solution, attempt)) {
      bad_file("{}: the file holds the model twice, with the names of {} and of {}; expected one of them",
               reader.architecture(), dialects.names[static_cast<size_t>(solution->dialect)],
               dialects.names[static_cast<size_t>(attempt.dialect)]);
    }
  }
  if (solution == nullptr) refuse_incomplete(checkpoint, reader, specs, dialects, attempts);
  if (!solution->ambiguous.empty()) {
    bad_file("{}: {} ({}); expected one of them", reader.architecture(), listing(solution->ambiguous),
             dialects.names[static_cast<size_t>(solution->dialect)]);
  }
  return {.dialect = solution->dialect, .chosen = solution->chosen};
}

void require_no_leftovers(const Checkpoint& checkpoint, const std::set<std::string_view>& used,
                          const DialectInfo& dialects, const std::string& architecture,
                          std::string_view dialect) {
  std::map<std::string, int64_t> skipped;
  const auto unexpected = leftovers(checkpoint, used, dialects, &skipped);
  if (!unexpected.empty()) {
    bad_file("{}: {} unexpected tensors ({}): {}; is this file for another architecture?", architecture,
             unexpected.size(), dialect, listing(unexpected));
  }
  for (const auto& [reason, count] : skipped) log_info("{} tensors skipped: {}", count, reason);
}

}  // namespace synod
