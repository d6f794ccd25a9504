#include "engine/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace synod {
namespace {

// Bytes at the end of `text` that begin `stop` without completing it.
size_t open_end(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::string StopMatcher::push(std::string text, bool watch) {
  if (stopped_) return {};
  if (stops_.empty()) return text;
  pending_ += text;
  if (!watch) return std::exchange(pending_, {});
  return release(false);
}

std::string StopMatcher::release(bool at_end) {
  size_t first_end = std::string::npos, start = 0;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = pending_.find(stops_[i]);
    if (at == std::string::npos) continue;
    const size_t end = at + stops_[i].size();
    if (end > first_end || (end == first_end && at >= start)) continue;
    first_end = end;
    start = at;
    stopped_ = i;
  }
  size_t certain = start;
  if (!stopped_) {
    size_t held = 0;
    if (!at_end) {
      for (const std::string& stop : stops_) held = std::max(held, open_end(pending_, stop));
    }
    certain = pending_.size() - held;
  }
  std::string text = pending_.substr(0, certain);
  pending_.erase(0, certain);
  if (stopped_) pending_.clear();
  return text;
}

}  // namespace synod
