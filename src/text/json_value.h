// A JSON value that knows its file and path, so that every complaint can name them.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace synod {

class JsonValue {
 public:
  JsonValue(simdjson::dom::element element, std::string file, std::string path)
      : element_(element), file_(std::move(file)), path_(std::move(path)) {}

  bool is_null() const { return element_.is_null(); }
  bool is_object() const { return element_.is_object(); }

  // Missing members and nulls are the same to every tokenizer file.
  std::optional<JsonValue> member(std::string_view key) const {
    simdjson::dom::element found;
    if (object().at_key(key).get(found) != simdjson::SUCCESS || found.is_null()) return std::nullopt;
    return JsonValue(found, file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
  }

  JsonValue require(std::string_view key) const {
    auto found = member(key);
    if (!found) bad_file("{}: {}: the member '{}' is missing", file_, where(), key);
    return *found;
  }

  JsonValue item(simdjson::dom::element element, size_t i) const {
    return JsonValue(element, file_, fmt::format("{}[{}]", path_, i));
  }

  simdjson::dom::object object() const { return get<simdjson::dom::object>("an object"); }
  simdjson::dom::array array() const { return get<simdjson::dom::array>("an array"); }
  std::string_view text() const { return get<std::string_view>("a string"); }
  bool boolean() const { return get<bool>("true or false"); }
  double number() const { return get<double>("a number"); }

  // Token ids; `limit` is one past the highest.
  int32_t id(size_t limit) const {
    int64_t value = -1;
    if (element_.get(value) != simdjson::SUCCESS || value < 0 || uint64_t(value) >= limit) {
      bad_file("{}: {}: expected a token id from 0 to {}, got {}", file_, where(), limit - 1, shown());
    }
    return int32_t(value);
  }

  std::string_view text_or(std::string_view key, std::string_view fallback) const {
    const auto found = member(key);
    return found ? found->text() : fallback;
  }
  bool boolean_or(std::string_view key, bool fallback) const {
    const auto found = member(key);
    return found ? found->boolean() : fallback;
  }

  std::string shown() const {
    std::string text = simdjson::minify(element_);
    if (text.size() > 200) text = text.substr(0, 200) + "...";
    return text;
  }

  std::string where() const { return path_.empty() ? "top level" : path_; }
  const std::string& file() const { return file_; }

  [[noreturn]] void refuse(std::string_view supported) const {
    bad_file("{}: {}: supported is {}, got {}", file_, where(), supported, shown());
  }

 private:
  template <typename T>
  T get(std::string_view expected) const {
    T value;
    if (element_.get(value) != simdjson::SUCCESS) {
      bad_file("{}: {}: expected {}, got {}", file_, where(), expected, shown());
    }
    return value;
  }

  simdjson::dom::element element_;
  std::string file_;
  std::string path_;
};

}  // namespace synod
