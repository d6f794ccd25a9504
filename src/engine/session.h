// One sequence on one backend: appends tokens, gives logits, rolls back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/backend.h"

namespace synod {

class Session {
 public:
  // `max_cache_bytes` 0 = unbounded. Model and backend must outlive the session.
  Session(const Model& model, Backend& backend, int64_t max_cache_bytes = 0);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  enum class Rows { kLast, kAll };
  using Tap = std::function<void(int64_t index, const Tensor& hidden)>;

  // Appends `ids` in one forward call and returns logits f32 [1 or ids.size(), vocab_size]. Throws kUsage for
  // an id outside the vocabulary. When anything throws, the session is as before the call.
  std::vector<float> logits(std::span<const int32_t> ids, Rows rows, const Tap& tap = {});
  // Appends `ids` and returns the arg-max of the last row, without computing capped logits.
  int32_t greedy(std::span<const int32_t> ids);
  // Appends `ids` without any output.
  void append(std::span<const int32_t> ids);

  // Runs one token through the model and rolls it back: touches the weights, leaves no state.
  void warm_up();

  int64_t length() const;
  [[nodiscard]] bool truncate(int64_t length) { return cache_.truncate(sequence_, length); }
  int64_t cache_bytes() const { return cache_.used_bytes(); }
  const Model& model() const { return model_; }

 private:
  void step(std::span<const int32_t> ids, const ForwardRequest& request);

  const Model& model_;
  Backend& backend_;
  KvCache cache_;
  SequenceId sequence_;
};

}  // namespace synod
