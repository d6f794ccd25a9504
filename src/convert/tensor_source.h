// The tensors a conversion reads, under the names GGUF files give them, whatever holds them.
//
// A GGUF file lists its own tensors, all of them, layer by layer: what the model does not use (draft blocks)
// is carried over. Other checkpoints are bound by the model's roles, and the tensors are those that GGUF
// files have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/mixes.h"
#include "formats/checkpoint.h"
#include "models/model.h"

namespace synod {

struct SourceTensor {
  std::string name;
  std::vector<int64_t> shape;  // outermost first
  bool is_float = true;
  // The bytes of the tensor as GGUF can hold them, to be copied when the type stays; empty where there are
  // none (codes and scales apart).
  DType stored = DType::kF32;
  std::span<const std::byte> bytes;
  bool is_mapped = true;  // `bytes` lie in a mapped file
  // The rows of the tensor in order, as matrices: of stacked experts one per expert (or several, where the
  // output holds gate above up). Empty for vectors and integer tables.
  std::vector<Matrix> parts;
  int64_t n_experts = 1;
  // NVFP4 blocks have their factors in another tensor, which goes with them only as long as they stay NVFP4.
  std::string factor_of;

  int64_t parts_per_expert() const { return static_cast<int64_t>(parts.size()) / n_experts; }
};

class TensorSource {
 public:
  // Binds the model, so an incomplete or foreign checkpoint is refused here (kBadFile). `checkpoint` must
  // outlive this object.
  explicit TensorSource(const Checkpoint& checkpoint);

  const Architecture& architecture() const { return architecture_; }
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  int64_t vocab_size() const;
  // Is the tensor one of the model's roles? Draft blocks in a GGUF file are not.
  bool uses(std::string_view tensor) const;

 private:
  void list_gguf(const Checkpoint& checkpoint);
  void list_roles(const Checkpoint& checkpoint);

  const Architecture& architecture_;
  std::vector<WeightSpec> specs_;
  Weights weights_;
  std::vector<ComputedTensor> computed_;
  std::vector<SourceTensor> tensors_;
};

// The tensors a conversion of these roles writes: what GGUF stores as one is one. Roles that are not required
// are left out. For plans without a checkpoint.
std::vector<MixTensor> planned_tensors(std::span<const WeightSpec> specs);

}  // namespace synod
