// Tokens to text as a stream: whole UTF-8, cut at stop strings wherever tokens end. What may still become a
// stop string is held back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace synod {

// Cuts a stream of text at stop strings.
class StopMatcher {
 public:
  // No stop string is empty.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that is certain now. With `watch` false stop strings in it do not count.
  std::string push(std::string text, bool watch = true);
  // The rest, when no more text comes.
  std::string finish() { return stopped_ ? std::string() : release(true); }
  // Index of the stop string that was met; nothing comes out after it. Of several the one that ends first, of
  // those the longest.
  std::optional<size_t> stopped() const { return stopped_; }

 private:
  std::string release(bool at_end);

  std::vector<std::string> stops_;
  std::string pending_;
  std::optional<size_t> stopped_;
};

class TextStream {
 public:
  // `tokenizer` must outlive it.
  TextStream(const Tokenizer& tokenizer, bool keep_special, std::vector<std::string> stops)
      : decoder_(tokenizer, keep_special), stops_(std::move(stops)) {}

  // As StopMatcher's, from tokens.
  std::string push(int32_t id, bool watch) { return stops_.push(decoder_.push(id), watch); }
  std::string finish() {
    std::string text = stops_.push(decoder_.flush());
    return text += stops_.finish();
  }
  std::optional<size_t> stopped() const { return stops_.stopped(); }

 private:
  StreamDecoder decoder_;
  StopMatcher stops_;
};

}  // namespace synod
