// One stored module -> matrices: finds the twins of a tensor (scales, biases, factors), checks every shape,
// and says which tensors it used. The bytes stay where they are.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint.h"
#include "models/quant_config.h"
#include "quant/matrix.h"

namespace synod {

class ModuleReader {
 public:
  // `is_role` tells names that a role claims for itself, which are then no companions of other tensors
  // (Gemma's ffn_down_exps.scale).
  ModuleReader(const Checkpoint& checkpoint, std::function<bool(std::string_view)> is_role);

  bool present(const std::string& name) const;
  // Every stored tensor that may belong to the module, for messages about incomplete files.
  std::vector<std::string_view> relatives(const std::string& name) const;

  // `n_stacked` matrices [n_out, n_in] of the tensor `name`; a single one has no outer dimension.
  std::vector<Matrix> matrices(const std::string& name, int64_t n_stacked, int64_t n_out, int64_t n_in);
  // A tensor without twins, its shape checked up to dimensions of one.
  Tensor plain(const std::string& name, std::span<const int64_t> shape);

  const std::set<std::string_view>& used() const { return used_; }
  const std::string& architecture() const { return architecture_; }

 private:
  struct Module;  // names and sizes of the one being read

  const Tensor* take(const std::string& name);  // marks it used; null when absent
  Tensor shaped(const Tensor& tensor, std::span<const int64_t> shape) const;
  void check_values(const Tensor& tensor, bool is_scale);
  float positive_factor(const Tensor& tensor, int64_t index) const;

  std::vector<Matrix> read_plain(const Module& m, const Tensor& codes);
  std::vector<Matrix> read_fp8(const Module& m, const Tensor& codes);
  std::vector<Matrix> read_fp4(const Module& m, const Tensor& codes, const Tensor& scales);
  std::vector<Matrix> read_nvfp4(const Module& m, const Tensor& codes, const Tensor& scales,
                                 const Tensor& factor, bool divides);
  std::vector<Matrix> read_bytes(const Module& m, const Tensor& codes);
  std::vector<Matrix> read_packed(const Module& m, const Tensor& codes);
  std::vector<Matrix> read_mlx(const Module& m, const Tensor& codes);
  std::vector<Matrix> read_mlx_float(const Module& m, const Tensor& codes, const Tensor& scales,
                                     MlxQuant settings);
  void set_factors(std::vector<Matrix>& matrices, const Tensor& factor, bool divides);

  const Checkpoint& checkpoint_;
  std::function<bool(std::string_view)> is_role_;
  QuantConfig config_;
  std::string architecture_;
  std::set<std::string_view> used_;
  bool check_codes_;
  int64_t scale_bytes_left_;  // to be looked at
};

}  // namespace synod
