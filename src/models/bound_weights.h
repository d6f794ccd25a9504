// What Weights holds. Shared by binding and planning.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/weights.h"

namespace synod {

struct BoundWeight {
  WeightSpec::Kind kind = WeightSpec::Kind::kMatrix;
  Tensor tensor;                 // kVector, kValues, kIds; empty when absent
  std::vector<float> floats;     // owned values of kVector and kValues; empty in a dry run
  std::vector<int32_t> ids;      // owned values of kIds
  std::vector<Matrix> matrices;  // one of kMatrix, n_experts of kExperts; empty when absent
  std::string type;              // as stored: "q8_0", "mlx 4 bit"
  int64_t n_tensors = 0;         // stored code tensors
  int64_t bytes = 0;             // stored

  bool present() const { return n_tensors > 0; }
};

struct Weights::Impl {
  std::map<std::string, BoundWeight, std::less<>> roles;  // every role of the specs, absent ones empty
  std::string dialect;

  const BoundWeight& at(std::string_view role) const;
};

std::string storage_label(const Matrix& matrix);  // "q8_0", "fp8 128x128", "mlx 4 bit"

}  // namespace synod
