#include "models/weights.h"

#include <algorithm>

#include "base/error.h"
#include "models/bound_weights.h"

namespace synod {
namespace {

using Kind = WeightSpec::Kind;

// Tables of which a token reads one row.
bool is_lookup(std::string_view role, const BoundWeight& weight, bool has_output) {
  if (weight.kind == Kind::kIds) return true;
  return role == "per_layer_token_embd.weight" || (role == "token_embd.weight" && has_output);
}

}  // namespace

std::string storage_label(const Matrix& matrix) {
  switch (matrix.storage) {
    case Storage::kPlain:
    case Storage::kBlock:
      return std::string(name(matrix.type));
    case Storage::kFp8Block:
      return fmt::format("fp8 {}x{}", matrix.tile_out, matrix.group);
    case Storage::kMlxAffine:
      return fmt::format("mlx {} bit", matrix.bits);
    default:
      return std::string(name(matrix.storage));
  }
}

const BoundWeight& Weights::Impl::at(std::string_view role) const {
  const auto it = roles.find(role);
  SYNOD_ASSERT(it != roles.end());
  return it->second;
}

Weights::Weights(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Weights::~Weights() = default;
Weights::Weights(Weights&&) noexcept = default;
Weights& Weights::operator=(Weights&&) noexcept = default;

bool Weights::has(std::string_view role) const { return impl_->at(role).present(); }

Tensor Weights::vector(std::string_view role) const {
  const BoundWeight& weight = impl_->at(role);
  SYNOD_ASSERT(weight.kind == Kind::kVector);
  return weight.tensor;
}

Tensor Weights::values(std::string_view role) const {
  const BoundWeight& weight = impl_->at(role);
  SYNOD_ASSERT(weight.kind == Kind::kValues);
  return weight.tensor;
}

Tensor Weights::ids(std::string_view role) const {
  const BoundWeight& weight = impl_->at(role);
  SYNOD_ASSERT(weight.kind == Kind::kIds);
  return weight.tensor;
}

const Matrix& Weights::matrix(std::string_view role) const {
  static const Matrix kNone;
  const BoundWeight& weight = impl_->at(role);
  SYNOD_ASSERT(weight.kind == Kind::kMatrix);
  return weight.present() ? weight.matrices.front() : kNone;
}

std::span<const Matrix> Weights::experts(std::string_view role) const {
  const BoundWeight& weight = impl_->at(role);
  SYNOD_ASSERT(weight.kind == Kind::kExperts);
  return weight.matrices;
}

std::string_view Weights::dialect() const { return impl_->dialect; }

int64_t Weights::bytes() const {
  int64_t sum = 0;
  for (const auto& [role, weight] : impl_->roles) sum += weight.bytes;
  return sum;
}

int64_t Weights::bytes_per_token(int64_t n_experts_used) const {
  const auto output = impl_->roles.find("output.weight");
  const bool has_output = output != impl_->roles.end() && output->second.present();
  int64_t sum = 0;
  for (const auto& [role, weight] : impl_->roles) {
    if (!weight.present()) continue;
    if (weight.kind == Kind::kExperts) {
      const auto n_experts = static_cast<int64_t>(weight.matrices.size());
      sum += weight.bytes / n_experts * std::min(n_experts_used, n_experts);
    } else if (is_lookup(role, weight, has_output)) {
      const int64_t rows = weight.kind == Kind::kIds ? weight.tensor.rows() : weight.matrices.front().n_out;
      sum += weight.bytes / rows;
    } else {
      sum += weight.bytes;
    }
  }
  return sum;
}

std::vector<Weights::TypeTotal> Weights::totals() const {
  std::map<std::string, TypeTotal> by_type;
  for (const auto& [role, weight] : impl_->roles) {
    if (!weight.present()) continue;
    TypeTotal& total = by_type[weight.type];
    total.type = weight.type;
    total.n_tensors += weight.n_tensors;
    total.bytes += weight.bytes;
  }
  std::vector<TypeTotal> result;
  for (auto& [type, total] : by_type) result.push_back(std::move(total));
  std::stable_sort(result.begin(), result.end(),
                   [](const TypeTotal& a, const TypeTotal& b) { return a.bytes > b.bytes; });
  return result;
}

}  // namespace synod
