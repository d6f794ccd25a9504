#include "convert/size_plan.h"

#include <algorithm>

namespace synod {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

class PerToken {
 public:
  PerToken(bool has_output, int64_t n_experts_used) : has_output_(has_output), n_used_(n_experts_used) {}

  int64_t bytes(const TensorSize& t) const {
    if (t.shape.size() == 3 && contains(t.name, "_exps.")) {
      return t.bytes / t.shape[0] * std::min(n_used_, t.shape[0]);
    }
    const bool is_table = t.name == "per_layer_token_embd.weight" || contains(t.name, "tid2eid") ||
                          (t.name == "token_embd.weight" && has_output_);
    return is_table ? t.bytes / t.shape[0] : t.bytes;
  }

 private:
  bool has_output_;
  int64_t n_used_;
};

std::string label_of(const SourceTensor& t) {
  if (t.parts.empty() || !t.bytes.empty()) return std::string(name(t.stored));
  const Matrix& m = t.parts.front();
  switch (m.storage) {
    case Storage::kPlain:
    case Storage::kBlock:
      return std::string(name(m.type));
    case Storage::kMlxAffine:
      return fmt::format("mlx {} bit", m.bits);
    default:
      return std::string(name(m.storage));
  }
}

}  // namespace

std::vector<TensorSize> stored_sizes(const TensorSource& source, int64_t n_experts_used) {
  const auto& tensors = source.tensors();
  const PerToken per_token(std::ranges::find(tensors, "output.weight", &SourceTensor::name) != tensors.end(),
                           n_experts_used);
  std::vector<TensorSize> sizes;
  for (const SourceTensor& t : tensors) {
    TensorSize size{.name = t.name, .type = label_of(t), .shape = t.shape};
    size.bytes = static_cast<int64_t>(t.bytes.size());
    if (t.bytes.empty()) {
      for (const Matrix& m : t.parts) size.bytes += m.bytes();
    }
    if (source.uses(t.name)) size.bytes_per_token = per_token.bytes(size);
    sizes.push_back(std::move(size));
  }
  return sizes;
}

std::vector<TensorSize> planned_sizes(std::span<const WeightSpec> specs, const Mix& mix,
                                      const MixOptions& options, int64_t n_experts_used) {
  const std::vector<MixTensor> tensors = planned_tensors(specs);
  const TypePlan plan = plan_types(mix, tensors, options);
  const PerToken per_token(std::ranges::find(tensors, "output.weight", &MixTensor::name) != tensors.end(),
                           n_experts_used);
  std::vector<TensorSize> sizes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MixTensor& t = tensors[i];
    const DType type = plan.types[i].value_or(contains(t.name, "tid2eid") ? DType::kI32 : DType::kF32);
    TensorSize size{.name = t.name, .type = std::string(name(type)), .shape = t.shape};
    size.bytes = Tensor::contiguous(nullptr, type, t.shape).bytes();
    size.bytes_per_token = per_token.bytes(size);
    sizes.push_back(std::move(size));
  }
  return sizes;
}

SizeTotal total(std::span<const TensorSize> sizes) {
  SizeTotal sum;
  for (const TensorSize& s : sizes) {
    sum.bytes += s.bytes;
    sum.bytes_per_token += s.bytes_per_token;
  }
  return sum;
}

}  // namespace synod
