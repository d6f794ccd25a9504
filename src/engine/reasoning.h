// Where a choice stands with respect to the reasoning channel, from token ids alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/request.h"

namespace synod {

class ReasoningTracker {
 public:
  explicit ReasoningTracker(const ReasoningOptions& options)
      : options_(options), inside_(options.starts_open && !options.close_ids.empty()) {}

  bool inside() const { return inside_; }
  int64_t tokens() const { return tokens_; }  // inside, markers included

  // `output` are the generated ids, the new one last.
  void accept(std::span<const int32_t> output) {
    if (inside_) {
      ++tokens_;
      inside_ = !ends_with(output, options_.close_ids);
    } else if (ends_with(output, options_.open_ids)) {
      inside_ = true;
      tokens_ += static_cast<int64_t>(options_.open_ids.size());
    }
  }
  // The budget is spent: the close ids are due.
  bool must_close() const { return inside_ && options_.max_tokens >= 0 && tokens_ >= options_.max_tokens; }

 private:
  static bool ends_with(std::span<const int32_t> ids, std::span<const int32_t> end) {
    return !end.empty() && ids.size() >= end.size() && std::ranges::equal(ids.last(end.size()), end);
  }

  const ReasoningOptions& options_;
  bool inside_;
  int64_t tokens_ = 0;
};

}  // namespace synod
