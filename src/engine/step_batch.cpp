#include "engine/step_batch.h"

#include "engine/forward_call.h"

namespace synod {

void StepBatch::clear() {
  ids_.clear();
  positions_.clear();
  rows_.clear();
  row_start_.assign(1, 0);
  past_.clear();
  sequences_.clear();
  has_logits_ = false;
}

int64_t StepBatch::add(const KvCache& cache, SequenceId sequence, std::span<const int32_t> ids,
                       int64_t n_rows) {
  const int64_t past = cache.length(sequence);
  for (size_t i = 0; i < ids.size(); ++i) {
    positions_.push_back(static_cast<int32_t>(past + static_cast<int64_t>(i)));
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  row_start_.push_back(n_tokens());
  past_.push_back(past);
  sequences_.push_back(sequence);
  const auto first = static_cast<int64_t>(rows_.size());
  for (int64_t i = n_rows; i > 0; --i) rows_.push_back(static_cast<int32_t>(n_tokens() - i));
  return first;
}

void StepBatch::forward(const KvCache& cache, bool logits) {
  const int64_t n = n_tokens(), vocab = model_.info().vocab_size;
  const auto n_rows = static_cast<int64_t>(rows_.size());
  const BatchView batch{.ids = Tensor::contiguous(ids_.data(), DType::kI32, {n}, "ids"),
                        .positions = Tensor::contiguous(positions_.data(), DType::kI32, {n}, "positions"),
                        .row_start = row_start_,
                        .past = past_};
  ForwardRequest request;
  if (n_rows > 0) {
    greedy_.assign(rows_.size(), 0);
    request.rows = Tensor::contiguous(rows_.data(), DType::kI32, {n_rows}, "rows");
    request.greedy = Tensor::contiguous(greedy_.data(), DType::kI32, {n_rows}, "greedy");
    if (logits) {
      if (n_rows > logits_capacity_) {
        logits_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n_rows * vocab));
        logits_capacity_ = n_rows;
      }
      request.logits = Tensor::contiguous(logits_.get(), DType::kF32, {n_rows, vocab}, "logits");
    }
  }
  forward_call(model_, batch, cache.view(sequences_), backend_, request);
  has_logits_ = logits;
}

std::span<float> StepBatch::logits(int64_t row) {
  if (!has_logits_) return {};
  const int64_t vocab = model_.info().vocab_size;
  return {logits_.get() + row * vocab, static_cast<size_t>(vocab)};
}

}  // namespace synod
