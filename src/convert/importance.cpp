#include "convert/importance.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "quant/encode.h"

namespace synod {
namespace {

std::string replaced(const std::string& name, std::string_view from, std::string_view to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? "" : name.substr(0, at) + std::string(to) + name.substr(at + from.size());
}

const ImatrixEntry* find_entry(const Imatrix& imatrix, const std::string& name) {
  const std::array<std::string, 4> spellings = {name, replaced(name, "ffn_gate_up_exps", "ffn_gate_exps"),
                                                replaced(name, "ffn_gate_exps", "ffn_gate_up_exps"),
                                                replaced(name, "ffn_up_exps", "ffn_gate_up_exps")};
  for (const std::string& spelling : spellings) {
    const auto it = spelling.empty() ? imatrix.entries.end() : imatrix.entries.find(spelling);
    if (it != imatrix.entries.end()) return &it->second;
  }
  return nullptr;
}

}  // namespace

Importance::Importance(const Imatrix& imatrix, const std::string& name, int64_t n_experts, int64_t n_columns,
                       std::vector<std::string>& warnings) {
  const ImatrixEntry* entry = find_entry(imatrix, name);
  if (entry == nullptr) {
    // Tables are read by row, so there is nothing to collect unless they serve as the output matrix.
    if (name.starts_with("blk."))
      warnings.push_back(fmt::format("{}: no importance data: encoded without", name));
    return;
  }
  if (entry->n_columns != n_columns || entry->n_experts != n_experts) {
    bad_file(
        "importance of {}: expected shape [{}, {}], got [{}, {}]; is the importance matrix of another model?",
        name, n_experts, n_columns, entry->n_experts, entry->n_columns);
  }
  entry_ = entry;
  int64_t n_unused = 0, n_bad = 0;
  std::vector<float> weights;
  for (int64_t e = 0; e < n_experts; ++e) {
    const double count = entry->counts[static_cast<size_t>(e)];
    State state = State::kUsed;
    if (!(count > 0.0)) {
      state = State::kAllAlike;
      ++(std::isfinite(count) ? n_unused : n_bad);
    } else if (is_rejected(check_importance(means(e, weights)))) {
      state = State::kNone;
      ++n_bad;
    }
    states_.push_back(state);
  }
  std::string problem;
  if (n_unused > 0) {
    problem = n_experts == 1 ? "never used in the calibration text: all columns count alike"
                             : fmt::format(
                                   "{} of {} experts never used in the calibration text: all their columns "
                                   "count alike",
                                   n_unused, n_experts);
  }
  if (n_bad > 0) {
    problem += problem.empty() ? "" : "; ";
    problem += n_experts == 1 ? "the data is NaN, infinite, negative or all zero: encoded without"
                              : fmt::format(
                                    "the data of {} of {} experts is NaN, infinite, negative or all zero: "
                                    "these are encoded without",
                                    n_bad, n_experts);
  }
  if (!problem.empty()) warnings.push_back(fmt::format("importance of {}: {}", name, problem));
}

// In f32, as other readers of these files do it: the same bytes come out.
std::span<const float> Importance::means(int64_t expert, std::vector<float>& buffer) const {
  const auto n = static_cast<size_t>(entry_->n_columns);
  const auto count = static_cast<float>(entry_->counts[static_cast<size_t>(expert)]);
  const float* sums = entry_->sums.data() + static_cast<size_t>(expert) * n;
  buffer.resize(n);
  for (size_t i = 0; i < n; ++i) buffer[i] = sums[i] / count;
  return buffer;
}

std::span<const float> Importance::of(int64_t expert, std::vector<float>& buffer) const {
  if (entry_ == nullptr) return {};
  switch (states_[static_cast<size_t>(expert)]) {
    case State::kUsed:
      return means(expert, buffer);
    case State::kAllAlike:
      buffer.assign(static_cast<size_t>(entry_->n_columns), 1.0F);
      return buffer;
    case State::kNone:
      break;
  }
  return {};
}

}  // namespace synod
