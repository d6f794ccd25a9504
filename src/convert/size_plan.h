// What a model weighs, tensor by tensor, and how much of it one decoded token reads: the ceiling of decode
// speed on a machine whose memory is the limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/mixes.h"
#include "convert/tensor_source.h"

namespace synod {

struct TensorSize {
  std::string name;  // as in GGUF files
  std::string type;  // as stored: "q4_k", "fp8 128x128"
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  int64_t bytes_per_token = 0;  // of stacked experts those used, of tables one row
};

// Of a checkpoint as it is stored. Tensors that the model does not use (draft blocks) read nothing.
std::vector<TensorSize> stored_sizes(const TensorSource& source, int64_t n_experts_used);

// Of a model that is not here, stored as `mix`. Vectors count as f32, id tables as i32.
std::vector<TensorSize> planned_sizes(std::span<const WeightSpec> specs, const Mix& mix,
                                      const MixOptions& options, int64_t n_experts_used);

struct SizeTotal {
  int64_t bytes = 0;
  int64_t bytes_per_token = 0;
};
SizeTotal total(std::span<const TensorSize> sizes);

}  // namespace synod
