// Strict reading of request bodies: every value that is used is checked for type and range, and every
// complaint names the field by its path ("tools[0].function.name"). null means absent. Unknown fields are
// ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace synod::server {

using Json =
    nlohmann::ordered_json;  // keeps the client's key order: schemas and tools are shown to the model

struct JsonLimits {
  int64_t max_depth = 128;
  int64_t max_values = 2'000'000;            // a prompt of a million token ids must pass
  int64_t max_key_comparisons = 20'000'000;  // one object of 6,000 members, or many smaller ones
};

// Parses a whole body. Throws a 400 for what is not JSON in UTF-8, too deep, or too many values; the check
// runs before the parser, so that neither its memory nor its stack is at the client's mercy.
Json parse_json(std::string_view text, const JsonLimits& limits = {});

// One object of a request.
class Fields {
 public:
  // Throws a 400 when `object` is not an object. `object` must outlive this.
  explicit Fields(const Json& object, std::string path = "");

  // nullptr when absent or null.
  const Json* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::optional<double> number(std::string_view key, double low, double high) const;
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::string> one_of(std::string_view key,
                                    std::initializer_list<std::string_view> words) const;
  std::optional<Fields> object(std::string_view key) const;
  // Items of an array; nullptr when absent. Throws when it has more than `max_items`.
  const Json* array(std::string_view key, size_t max_items = std::numeric_limits<size_t>::max()) const;

  std::string require_text(std::string_view key) const;
  const Json& require_array(std::string_view key,
                            size_t max_items = std::numeric_limits<size_t>::max()) const;

  std::string path(std::string_view key) const;            // "tools[0].function"
  std::string path(std::string_view key, size_t i) const;  // "tools[0]"
  // 400: known, but this server cannot do it.
  [[noreturn]] void refuse(std::string_view key, std::string_view why) const;
  // refuse() when the field is there and is neither false, 0, "" nor empty.
  void refuse_if_set(std::string_view key, std::string_view why) const;

  const Json& json() const { return object_; }
  const std::string& where() const { return path_; }

 private:
  const Json& object_;
  std::string path_;
};

// The value as messages show it: at most 80 bytes of it.
std::string shown(const Json& value);
// Text for a reply; invalid UTF-8 becomes U+FFFD.
std::string dump(const Json& value);

}  // namespace synod::server
