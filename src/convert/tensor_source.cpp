#include "convert/tensor_source.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace synod {
namespace {

using Kind = WeightSpec::Kind;

bool is_integer(DType type) {
  switch (type) {
    case DType::kI8:
    case DType::kI16:
    case DType::kI32:
    case DType::kI64:
      return true;
    default:
      return false;
  }
}

std::vector<int64_t> shape_of(const Tensor& t) { return {t.shape.begin(), t.shape.begin() + t.rank}; }

std::span<const std::byte> bytes_of(const Tensor& t) { return {t.data, static_cast<size_t>(t.bytes())}; }

// Where GGUF (dialect 0) keeps the role: a fused tensor's part when it has one.
const Candidate* fused_candidate(const WeightSpec& spec) {
  for (const Candidate& c : spec.candidates) {
    if (c.dialect == 0 && c.n_parts > 1) return &c;
  }
  return nullptr;
}

// The matrices of a stored tensor of two or three dimensions.
std::vector<Matrix> slices(const Tensor& t) {
  std::vector<Matrix> result;
  const int64_t n_in = t.inner(), n_out = t.dim(t.rank - 2), n = t.rows() / n_out;
  const int64_t bytes = n_out * row_bytes(t.type, n_in);
  for (int64_t e = 0; e < n; ++e) {
    result.push_back(matrix_of(Tensor::contiguous(t.data + e * bytes, t.type, {n_out, n_in}, t.name)));
  }
  return result;
}

// "X.weight" -> "X.scale"
std::string factor_name(std::string_view weight) {
  constexpr std::string_view kSuffix = ".weight";
  return weight.ends_with(kSuffix) ? fmt::format("{}.scale", weight.substr(0, weight.size() - kSuffix.size()))
                                   : "";
}

}  // namespace

TensorSource::TensorSource(const Checkpoint& checkpoint)
    : architecture_(find_architecture(checkpoint)),
      specs_(architecture_.specs(checkpoint)),
      weights_(Weights::bind(checkpoint, specs_, architecture_.dialects(checkpoint))) {
  if (checkpoint.container() == Checkpoint::Container::kGguf) {
    list_gguf(checkpoint);
  } else {
    computed_ = architecture_.computed_tensors(checkpoint);
    list_roles(checkpoint);
  }
}

int64_t TensorSource::vocab_size() const { return weights_.matrix("token_embd.weight").n_out; }

bool TensorSource::uses(std::string_view tensor) const {
  return std::ranges::any_of(specs_, [tensor](const WeightSpec& spec) {
    return spec.role == tensor || std::ranges::any_of(spec.candidates, [tensor](const Candidate& c) {
             return c.dialect == 0 && c.name == tensor;
           });
  });
}

void TensorSource::list_gguf(const Checkpoint& checkpoint) {
  std::set<std::string_view> roles;
  for (const WeightSpec& spec : specs_) {
    for (const Candidate& c : spec.candidates) roles.insert(c.name);
  }
  std::map<std::string, size_t, std::less<>> factors;  // name of the factor tensor -> index of its weight
  for (const auto& [tensor_name, t] : checkpoint.tensors()) {
    SourceTensor s;
    s.name = t.name;
    s.shape = shape_of(t);
    s.is_float = !is_integer(t.type);
    s.stored = t.type;
    s.bytes = bytes_of(t);
    if (s.is_float && (t.rank == 2 || t.rank == 3)) {
      s.parts = slices(t);
      s.n_experts = t.rank == 3 ? t.dim(0) : 1;
    }
    if (t.type == DType::kNVFP4) {
      const std::string factor = factor_name(t.name);
      const Tensor* found = roles.contains(factor) ? nullptr : checkpoint.find(factor);
      if (found != nullptr) {
        factors.emplace(factor, tensors_.size());
        const auto n = static_cast<int64_t>(s.parts.size());
        if (found->type != DType::kF32 || (found->size() != 1 && found->size() != n)) {
          bad_file("tensor {}: expected 1 or {} factors (f32), got {} {}", factor, n, shape_string(*found),
                   name(found->type));
        }
        for (int64_t e = 0; e < n; ++e) {
          s.parts[static_cast<size_t>(e)].global_scale = found->as<float>()[found->size() == 1 ? 0 : e];
        }
      }
    }
    tensors_.push_back(std::move(s));
  }
  for (SourceTensor& s : tensors_) {
    const auto it = factors.find(s.name);
    if (it != factors.end()) s.factor_of = tensors_[it->second].name;
  }
  // Layer by layer, as llama.cpp writes its files, whatever the files of a split look like.
  std::ranges::stable_sort(tensors_, {}, [](const SourceTensor& t) { return layer_of_tensor(t.name); });
}

void TensorSource::list_roles(const Checkpoint&) {
  std::map<std::string, size_t> fused;
  for (const WeightSpec& spec : specs_) {
    if (!weights_.has(spec.role)) continue;
    if (spec.kind == Kind::kVector || spec.kind == Kind::kValues || spec.kind == Kind::kIds) {
      const Tensor t = spec.kind == Kind::kVector   ? weights_.vector(spec.role)
                       : spec.kind == Kind::kValues ? weights_.values(spec.role)
                                                    : weights_.ids(spec.role);
      tensors_.push_back({.name = spec.role,
                          .shape = spec.shape,
                          .is_float = spec.kind != Kind::kIds,
                          .stored = t.type,
                          .bytes = bytes_of(t),
                          .is_mapped = false});
      continue;
    }
    const bool is_experts = spec.kind == Kind::kExperts;
    const auto matrices =
        is_experts ? weights_.experts(spec.role) : std::span(&weights_.matrix(spec.role), 1);
    const Candidate* c = fused_candidate(spec);
    const size_t n_parts = c == nullptr ? 1 : static_cast<size_t>(c->n_parts);
    const size_t part = c == nullptr ? 0 : static_cast<size_t>(c->part);
    const std::string name = c == nullptr ? spec.role : c->name;
    const auto [it, is_new] = fused.emplace(name, tensors_.size());
    if (is_new) {
      SourceTensor s{.name = name, .shape = spec.shape};
      s.shape[s.shape.size() - 2] *= static_cast<int64_t>(n_parts);
      s.n_experts = static_cast<int64_t>(matrices.size());
      s.parts.resize(matrices.size() * n_parts);
      tensors_.push_back(std::move(s));
    }
    for (size_t e = 0; e < matrices.size(); ++e) tensors_[it->second].parts[e * n_parts + part] = matrices[e];
  }
  for (const ComputedTensor& computed : computed_) {
    if (weights_.has(computed.name)) continue;
    tensors_.push_back({.name = computed.name,
                        .shape = {static_cast<int64_t>(computed.values.size())},
                        .bytes = std::as_bytes(std::span(computed.values)),
                        .is_mapped = false});
  }
}

std::vector<MixTensor> planned_tensors(std::span<const WeightSpec> specs) {
  std::vector<MixTensor> tensors;
  for (const WeightSpec& spec : specs) {
    if (!spec.required) continue;
    const bool is_matrix = spec.kind == Kind::kMatrix || spec.kind == Kind::kExperts;
    const Candidate* c = is_matrix ? fused_candidate(spec) : nullptr;
    const std::string name = c == nullptr ? spec.role : c->name;
    if (c != nullptr && std::ranges::find(tensors, name, &MixTensor::name) != tensors.end()) continue;
    MixTensor t{.name = name, .shape = spec.shape, .is_float = is_matrix};
    if (c != nullptr) t.shape[t.shape.size() - 2] *= c->n_parts;
    tensors.push_back(std::move(t));
  }
  return tensors;
}

}  // namespace synod
