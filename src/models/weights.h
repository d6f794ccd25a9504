// Weight binding: maps logical roles to what a checkpoint stores. A role's name is its GGUF tensor name.
//
// A model lists its roles (WeightSpec) with the names each dialect uses (Candidate). A dialect is one naming
// scheme: GGUF, Hugging Face with or without the multimodal prefix, MLX, the authors' own. The binder tries
// every dialect; exactly one must be complete, and inside it exactly one candidate per role must resolve,
// otherwise kBadFile lists what is missing, unexpected or ambiguous.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/tensor.h"
#include "formats/checkpoint.h"
#include "quant/matrix.h"

namespace synod {

// One way a role may be stored. `name` is the tensor's full name; for modules whose codes, scales and biases
// are separate tensors, the name of the plain weight ("....q_proj.weight"): twins are derived from it
// (.scale, .weight_scale_inv, .scales/.biases, weight_packed/weight_scale/weight_global_scale,
// weight_scale/weight_scale_2). "{e}" stands for the expert number: then one tensor per expert.
struct Candidate {
  int dialect = 0;
  std::string name;
  // The stored matrix (each expert's) holds n_parts equal row ranges, and this role is range `part`.
  int part = 0;
  int n_parts = 1;  // 2 for fused gate and up
};

struct WeightSpec {
  enum class Kind {
    kVector,   // 1-D values: decoded to f32 at binding
    kMatrix,   // [n_out, n_in], any storage
    kExperts,  // [n_experts, n_out, n_in], stacked or one tensor per expert
    kIds,      // integer table [rows, columns]: converted to i32 at binding
    kValues,   // 2-D values used element-wise: decoded to f32 at binding
  };
  std::string role;  // GGUF name, "blk.3.attn_q.weight"
  Kind kind = Kind::kMatrix;
  std::vector<int64_t> shape;  // outermost first
  bool required = true;
  bool quantizable = true;  // may convert and quantize store it in a block type?
  std::vector<Candidate> candidates;
};

// The names of a model's dialects (for messages), and tensors that are none of its business.
struct DialectInfo {
  std::vector<std::string> names;  // index = Candidate::dialect; "GGUF", "Hugging Face (model.)", ...
  // Skipped with one log line per reason ("vision tower"); nullptr = not skippable.
  std::function<const char*(std::string_view tensor)> skip_reason;
};

class Weights {
 public:
  // Solves the binding. `checkpoint` must outlive the result (matrices view its mapped bytes).
  static Weights bind(const Checkpoint& checkpoint, std::span<const WeightSpec> specs,
                      const DialectInfo& dialects);
  // Shapes without bytes for a dry run: matrices and experts get the type `type_of` returns (block types
  // whose width does not fit a row become q8_0, then f16). Roles that are not required are absent.
  static Weights planned(std::span<const WeightSpec> specs,
                         const std::function<DType(const WeightSpec&)>& type_of);
  ~Weights();
  Weights(Weights&&) noexcept;
  Weights& operator=(Weights&&) noexcept;

  // Bound weights. Asking for a role that is not in the specs, or with the wrong kind, is our bug; an absent
  // optional role gives an empty value. Pointers and spans live as long as this object.
  bool has(std::string_view role) const;
  Tensor vector(std::string_view role) const;                    // f32 [n]
  Tensor values(std::string_view role) const;                    // f32 [rows, columns]
  Tensor ids(std::string_view role) const;                       // i32 [rows, columns]
  const Matrix& matrix(std::string_view role) const;             // empty Matrix when absent
  std::span<const Matrix> experts(std::string_view role) const;  // [n_experts]

  std::string_view dialect() const;  // the dialect that was complete
  int64_t bytes() const;             // stored bytes of all bound weights
  // Read per decoded token: of look-up tables one row, of experts those used.
  int64_t bytes_per_token(int64_t n_experts_used) const;
  struct TypeTotal {
    std::string type;  // "q8_0", "mlx 4 bit", ...
    int64_t n_tensors = 0;
    int64_t bytes = 0;
  };
  std::vector<TypeTotal> totals() const;  // by stored type, largest first

 private:
  struct Impl;
  explicit Weights(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod
