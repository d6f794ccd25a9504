#include "engine/session.h"

#include <array>
#include <numeric>

#include "engine/forward_call.h"

namespace synod {

Session::Session(const Model& model, Backend& backend, int64_t max_cache_bytes)
    : model_(model),
      backend_(backend),
      cache_(
          model.cache_spec(), [&backend](int64_t bytes) { return backend.allocate(bytes); }, max_cache_bytes),
      sequence_(cache_.create()) {}

Session::~Session() { cache_.release(sequence_); }

int64_t Session::length() const { return cache_.length(sequence_); }

void Session::step(std::span<const int32_t> ids, const ForwardRequest& request) {
  const auto n = static_cast<int64_t>(ids.size());
  if (n == 0) fail(Error::Kind::kUsage, "expected at least 1 token, got 0");
  for (const int32_t id : ids) {
    if (id < 0 || id >= model_.info().vocab_size) {
      fail(Error::Kind::kUsage, "token id {} is outside the vocabulary of {}", id, model_.info().vocab_size);
    }
  }
  const int64_t past = length();
  std::vector<int32_t> token_ids(ids.begin(), ids.end());
  std::vector<int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
  const std::array<int64_t, 2> row_start = {0, n};
  const std::array<int64_t, 1> pasts = {past};
  const BatchView batch{.ids = Tensor::contiguous(token_ids.data(), DType::kI32, {n}, "ids"),
                        .positions = Tensor::contiguous(positions.data(), DType::kI32, {n}, "positions"),
                        .row_start = row_start,
                        .past = pasts};
  cache_.reserve(sequence_, n);
  const std::array<SequenceId, 1> sequences = {sequence_};
  forward_call(model_, batch, cache_.view(sequences), backend_, request);
  cache_.commit(sequence_, n);
}

std::vector<float> Session::logits(std::span<const int32_t> ids, Rows rows, const Tap& tap) {
  const int64_t n = rows == Rows::kAll ? static_cast<int64_t>(ids.size()) : 1;
  const int64_t vocab = model_.info().vocab_size;
  std::vector<float> out(static_cast<size_t>(n * vocab));
  auto last = static_cast<int32_t>(ids.size()) - 1;
  ForwardRequest request;
  if (rows == Rows::kLast) request.rows = Tensor::contiguous(&last, DType::kI32, {1}, "rows");
  request.logits = Tensor::contiguous(out.data(), DType::kF32, {n, vocab}, "logits");
  request.tap = tap;
  step(ids, request);
  return out;
}

int32_t Session::greedy(std::span<const int32_t> ids) {
  auto last = static_cast<int32_t>(ids.size()) - 1;
  int32_t token = 0;
  ForwardRequest request;
  request.rows = Tensor::contiguous(&last, DType::kI32, {1}, "rows");
  request.greedy = Tensor::contiguous(&token, DType::kI32, {1}, "greedy");
  step(ids, request);
  return token;
}

void Session::append(std::span<const int32_t> ids) { step(ids, {}); }

void Session::warm_up() {
  const int64_t before = length();
  const std::array<int32_t, 1> token = {0};
  static_cast<void>(greedy(token));
  SYNOD_ASSERT(truncate(before));
}

}  // namespace synod
