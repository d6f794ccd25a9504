// One forward call of several sequences: lays their tokens end to end, runs the model, gives rows of output.
// Buffers grow to the largest step and stay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/backend.h"

namespace synod {

class StepBatch {
 public:
  StepBatch(const Model& model, Backend& backend) : model_(model), backend_(backend) {}

  void clear();
  // Appends `ids` to the sequence, whose room is reserved. Wants the outputs of the last `n_rows` of them.
  // Returns the index of the first such row.
  int64_t add(const KvCache& cache, SequenceId sequence, std::span<const int32_t> ids, int64_t n_rows);

  // Runs all that was added; nothing is committed. With `logits` every row gets logits, else only its
  // arg-max. Throws what the model or the backend's status throws, and clears that status.
  void forward(const KvCache& cache, bool logits);

  int32_t greedy(int64_t row) const { return greedy_[static_cast<size_t>(row)]; }
  std::span<float> logits(int64_t row);  // f32 [vocab_size]; empty when they were not asked for

  int64_t n_tokens() const { return static_cast<int64_t>(ids_.size()); }
  int64_t n_sequences() const { return static_cast<int64_t>(sequences_.size()); }

 private:
  const Model& model_;
  Backend& backend_;
  std::vector<int32_t> ids_, positions_, rows_, greedy_;
  std::vector<int64_t> row_start_, past_;
  std::vector<SequenceId> sequences_;
  std::unique_ptr<float[]> logits_;
  int64_t logits_capacity_ = 0;  // rows
  bool has_logits_ = false;
};

}  // namespace synod
