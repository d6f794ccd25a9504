// What all JSON readers of this folder share: positions for messages, and the checks around nlohmann's
// parser.
#pragma once

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace synod {

// Where the parser is. SAX callbacks do not say, so the input iterator counts.
class JsonPosition {
 public:
  JsonPosition(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  void set(size_t offset) { offset_ = offset; }
  std::string describe() const;  // "config.json: line 3, column 14"

 private:
  std::string_view text_;
  std::string_view file_;
  size_t offset_ = 0;  // bytes consumed
};

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* begin, const char* at, JsonPosition* position)
      : begin_(begin), at_(at), position_(position) {}
  const char& operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    position_->set(static_cast<size_t>(at_ - begin_));
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator old = *this;
    ++*this;
    return old;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* begin_;
  const char* at_;
  JsonPosition* position_;
};

template <typename... Args>
[[noreturn]] void bad_json(const JsonPosition& position, fmt::format_string<Args...> format, Args&&... args) {
  bad_file("{}: {}", position.describe(), fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void bad_json_syntax(const JsonPosition& position, const nlohmann::json::exception& error);

// Refuses what nlohmann's lexer would take for the end of the text.
void check_no_nul(std::string_view text, JsonPosition& position);

// Runs a SAX handler over the whole text. The handler reports errors by throwing synod::Error.
template <typename Handler>
void parse_json_events(std::string_view text, JsonPosition& position, Handler& handler) {
  check_no_nul(text, position);
  const char* begin = text.data();
  const char* end = begin + text.size();
  nlohmann::json::sax_parse(CountingIterator(begin, begin, &position),
                            CountingIterator(begin, end, &position), &handler);
}

}  // namespace synod
