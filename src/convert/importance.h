// Importance weights as encoders want them: f32 per column, checked, from the sums of an importance matrix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/imatrix.h"

namespace synod {

// The weights of one stored matrix, or of all its experts. An expert that no calibration token reached counts
// all columns alike (weight 1, as llama.cpp has it); one whose data is NaN, infinite, negative or all zero is
// encoded without importance. Neither spoils its neighbours.
class Importance {
 public:
  Importance() = default;  // none
  // `name` is the tensor's, `n_experts` 1 for a matrix. Looks the entry up under the tensor's name and, for
  // experts whose gate and up are stored as one in only one of the two files, under the other spelling. A
  // problem is put into `warnings`, one line per tensor. An entry of another shape is a problem of the whole
  // file: kBadFile. `imatrix` must outlive this object: weights are made when they are asked for, since those
  // of a whole model are gigabytes.
  Importance(const Imatrix& imatrix, const std::string& name, int64_t n_experts, int64_t n_columns,
             std::vector<std::string>& warnings);

  bool empty() const { return entry_ == nullptr; }
  // f32 [n_columns] in `buffer`, or empty for "none".
  std::span<const float> of(int64_t expert, std::vector<float>& buffer) const;

 private:
  enum class State : uint8_t { kUsed, kAllAlike, kNone };
  std::span<const float> means(int64_t expert, std::vector<float>& buffer) const;

  const ImatrixEntry* entry_ = nullptr;
  std::vector<State> states_;  // of the experts
};

}  // namespace synod
