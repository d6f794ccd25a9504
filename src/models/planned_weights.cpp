// Weights without bytes: what a dry run needs.
#include <array>

#include "base/error.h"
#include "models/bound_weights.h"

namespace synod {
namespace {

using Kind = WeightSpec::Kind;

// The wanted type, or the nearest one whose blocks fill a row of n_in values.
DType fitting_type(DType wanted, int64_t n_in) {
  for (const DType type : {wanted, DType::kQ8_0}) {
    if (n_in % info(type).block_values == 0) return type;
  }
  return DType::kF16;
}

Matrix planned_matrix(DType type, int64_t n_out, int64_t n_in, std::string_view role) {
  Matrix m;
  m.storage = is_block_type(type) ? Storage::kBlock : Storage::kPlain;
  m.type = type;
  m.n_out = n_out;
  m.n_in = n_in;
  m.row_stride = row_bytes(type, n_in);
  m.name = role;
  return m;
}

void plan_values(const WeightSpec& spec, DType type, std::string_view role, BoundWeight& weight) {
  weight.tensor = Tensor::contiguous(nullptr, type, spec.shape, role);
  weight.type = std::string(name(type));
  weight.bytes = weight.tensor.bytes();
}

void plan_matrices(const WeightSpec& spec, DType wanted, std::string_view role, BoundWeight& weight) {
  const size_t outer = spec.kind == Kind::kExperts ? 1 : 0;
  SYNOD_ASSERT(spec.shape.size() == outer + 2);
  const int64_t count = outer == 1 ? spec.shape[0] : 1;
  const int64_t n_out = spec.shape[outer], n_in = spec.shape[outer + 1];
  const Matrix m = planned_matrix(fitting_type(wanted, n_in), n_out, n_in, role);
  weight.matrices.assign(static_cast<size_t>(count), m);
  weight.type = storage_label(m);
  weight.bytes = count * m.bytes();
}

}  // namespace

Weights Weights::planned(std::span<const WeightSpec> specs,
                         const std::function<DType(const WeightSpec&)>& type_of) {
  auto impl = std::make_unique<Impl>();
  impl->dialect = "planned";
  for (const WeightSpec& spec : specs) {
    const auto [it, is_new] = impl->roles.try_emplace(spec.role);
    SYNOD_ASSERT(is_new);
    BoundWeight& weight = it->second;
    weight.kind = spec.kind;
    if (!spec.required) continue;
    weight.n_tensors = 1;
    switch (spec.kind) {
      case Kind::kVector:
      case Kind::kValues:
        plan_values(spec, DType::kF32, it->first, weight);
        break;
      case Kind::kIds:
        plan_values(spec, DType::kI32, it->first, weight);
        break;
      case Kind::kMatrix:
      case Kind::kExperts:
        plan_matrices(spec, type_of(spec), it->first, weight);
        break;
    }
  }
  return Weights(std::move(impl));
}

}  // namespace synod
