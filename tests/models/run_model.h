// Runs a model over token ids on a backend, cut into chunks, and compares with recorded outputs of
// transformers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "kv/kv_cache.h"
#include "models/model.h"
#include "ops/backend.h"

namespace synod::testing {

struct Output {
  std::vector<float> logits;               // [n_tokens, vocab_size]
  std::vector<std::vector<float>> hidden;  // [n_layers + 1], each [n_tokens, width]; see ForwardRequest::tap
};

inline Tensor ids_tensor(std::vector<int32_t>& values) {
  return Tensor::contiguous(values.data(), DType::kI32, {static_cast<int64_t>(values.size())}, "ids");
}

inline void append_values(const Tensor& tensor, std::vector<float>& out) {
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    const auto* row = tensor.row_as<const float>(r);
    out.insert(out.end(), row, row + tensor.inner());
  }
}

// One sequence of a model with its own cache.
class SequenceRunner {
 public:
  SequenceRunner(const Model& model, Backend& be)
      : model_(model),
        be_(be),
        cache_(
            model.cache_spec(),
            be.is_dry() ? KvCache::Allocator{} : [&be](int64_t n) { return be.allocate(n); }),
        sequence_(cache_.create()) {}

  // Feeds the ids as one step and commits it; appends logits of every row, and hidden states if asked.
  void step(std::span<const int32_t> ids, Output* out, bool hidden = false) {
    const auto n = static_cast<int64_t>(ids.size());
    const int64_t vocab = model_.info().vocab_size;
    logits_.assign(be_.is_dry() ? 0 : static_cast<size_t>(n * vocab), 0.0F);
    ForwardRequest request;
    request.logits =
        Tensor::contiguous(be_.is_dry() ? nullptr : logits_.data(), DType::kF32, {n, vocab}, "logits");
    if (hidden && out != nullptr) {
      out->hidden.resize(static_cast<size_t>(model_.info().n_layers + 1));
      request.tap = [out](int64_t index, const Tensor& state) {
        append_values(state, out->hidden[static_cast<size_t>(index)]);
      };
    }
    forward(ids, request);
    if (out != nullptr) out->logits.insert(out->logits.end(), logits_.begin(), logits_.end());
  }

  // Feeds the ids and returns the arg-max after the last one, without logits leaving the backend.
  int32_t greedy(std::span<const int32_t> ids) {
    std::vector<int32_t> row{static_cast<int32_t>(ids.size()) - 1};
    std::vector<int32_t> best{-1};
    ForwardRequest request;
    request.rows = ids_tensor(row);
    request.greedy = ids_tensor(best);
    forward(ids, request);
    return best[0];
  }

  void forward(std::span<const int32_t> ids, const ForwardRequest& request) {
    const auto n = static_cast<int64_t>(ids.size());
    const int64_t past = cache_.length(sequence_);
    std::vector<int32_t> id_values(ids.begin(), ids.end());
    std::vector<int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(past));
    const std::vector<int64_t> row_start{0, n};
    const std::vector<int64_t> pasts{past};
    const BatchView batch{ids_tensor(id_values), ids_tensor(positions), row_start, pasts};
    cache_.reserve(sequence_, n);
    const std::vector<SequenceId> sequences{sequence_};
    const KvView view = cache_.view(sequences);
    model_.forward(batch, view, be_, request);
    be_.join();
    require_ok(be_);
    cache_.commit(sequence_, n);
  }

  [[nodiscard]] bool truncate(int64_t length) { return cache_.truncate(sequence_, length); }
  int64_t length() const { return cache_.length(sequence_); }

 private:
  const Model& model_;
  Backend& be_;
  KvCache cache_;
  SequenceId sequence_;
  std::vector<float> logits_;
};

// `chunks`: sizes of the steps, in turn; the last one repeats. Empty: one step.
inline Output run_model(const Model& model, Backend& be, std::span<const int32_t> ids,
                        std::span<const int64_t> chunks, bool hidden) {
  Output out;
  SequenceRunner runner(model, be);
  size_t begin = 0;
  for (size_t c = 0; begin < ids.size(); ++c) {
    const size_t rest = ids.size() - begin;
    const size_t size =
        chunks.empty() ? rest : std::min(rest, static_cast<size_t>(chunks[std::min(c, chunks.size() - 1)]));
    runner.step(ids.subspan(begin, size), &out, hidden);
    begin += size;
  }
  return out;
}

// expected.safetensors of a fixture: input_ids [n], logits [n, vocab], hidden.N [last rows, width].
struct Expected {
  SafetensorsFile file;
  std::vector<int32_t> ids;
  Tensor logits;
  std::vector<Tensor> hidden;  // index N
};

inline std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.size()));
  std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
  return values;
}

inline Expected load_expected(const std::filesystem::path& path) {
  Expected expected{SafetensorsFile::open(path), {}, {}, {}};
  const Tensor* ids = expected.file.find("input_ids");
  const Tensor* logits = expected.file.find("logits");
  if (ids == nullptr || logits == nullptr)
    throw std::runtime_error(path.string() + ": no input_ids or logits");
  expected.ids.resize(static_cast<size_t>(ids->size()));
  std::memcpy(expected.ids.data(), ids->data, expected.ids.size() * sizeof(int32_t));
  expected.logits = *logits;
  for (int64_t n = 0;; ++n) {
    const Tensor* hidden = expected.file.find("hidden." + std::to_string(n));
    if (hidden == nullptr) break;
    expected.hidden.push_back(*hidden);
  }
  return expected;
}

struct Difference {
  float logits = 0.0F;             // largest absolute difference
  float hidden = 0.0F;             // over all recorded states
  int64_t hidden_index = -1;       // state of the largest
  int64_t arg_max_mismatches = 0;  // rows whose recorded margin exceeds `margin`
  int64_t rows = 0;
};

inline float max_abs_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0.0F;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const float d = std::fabs(a[i] - b[i]);
    worst = d <= worst ? worst : d;  // NaN is kept
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

// Largest value of a row, its index, and the distance to the second largest.
struct RowTop {
  size_t index;
  float margin;
};
inline RowTop row_top(std::span<const float> row) {
  const auto best = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
  float second = -INFINITY;
  for (size_t i = 0; i < row.size(); ++i) {
    if (i != best) second = std::max(second, row[i]);
  }
  return {best, row[best] - second};
}

// Compares all positions; hidden states are compared on the last rows, as many as were recorded.
inline Difference compare(const Output& output, const Expected& expected, float margin = 2e-3F) {
  Difference difference;
  const std::vector<float> logits = values_of(expected.logits);
  difference.logits = max_abs_difference(output.logits, logits);
  difference.rows = expected.logits.rows();
  const auto vocab = static_cast<size_t>(expected.logits.inner());
  for (size_t r = 0; r < static_cast<size_t>(difference.rows) && (r + 1) * vocab <= output.logits.size();
       ++r) {
    const RowTop top = row_top(std::span(logits).subspan(r * vocab, vocab));
    const RowTop got = row_top(std::span(output.logits).subspan(r * vocab, vocab));
    if (top.margin > margin && got.index != top.index) ++difference.arg_max_mismatches;
  }
  for (size_t n = 0; n < std::min(output.hidden.size(), expected.hidden.size()); ++n) {
    const std::vector<float> want = values_of(expected.hidden[n]);
    const std::vector<float>& got = output.hidden[n];
    if (got.size() < want.size()) {
      ADD_FAILURE() << "hidden." << n << ": expected at least " << want.size() << " values, got "
                    << got.size();
      continue;
    }
    const float d = max_abs_difference(std::span(got).last(want.size()), want);
    if (!(d <= difference.hidden)) difference.hidden = d, difference.hidden_index = static_cast<int64_t>(n);
  }
  return difference;
}

inline void print_difference(const std::string& name, const Difference& d) {
  std::printf(
      "%-24s rows %3d  max |logit diff| %.3g  max |hidden diff| %.3g (state %d)  arg-max mismatches %d\n",
      name.c_str(), static_cast<int>(d.rows), static_cast<double>(d.logits), static_cast<double>(d.hidden),
      static_cast<int>(d.hidden_index), static_cast<int>(d.arg_max_mismatches));
}

}  // namespace synod::testing
