#include "server/fields.h"

#include <cmath>

namespace synod::server {
namespace {

void check_structure(std::string_view text, const JsonLimits& limits) {
  std::vector<int64_t> members;  // so far, of each open object or array
  int64_t values = 1;
  int64_t key_comparisons = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') throw ApiError(400, fmt::format("the body is not JSON: NUL at byte {}", i));
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++values;
      members.push_back(c == '{' ? 1 : std::numeric_limits<int32_t>::min());
      if (static_cast<int64_t>(members.size()) > limits.max_depth) {
        throw ApiError(400, fmt::format("the body nests deeper than {} levels", limits.max_depth));
      }
    } else if (c == '}' || c == ']') {
      if (!members.empty()) members.pop_back();
    } else if (c == ',') {
      ++values;
      // An ordered object finds its keys by looking at all of them.
      if (!members.empty()) key_comparisons += std::max<int64_t>(0, members.back()++);
    }
  }
  if (values > limits.max_values) {
    throw ApiError(400,
                   fmt::format("the body has {} values; at most {} are accepted", values, limits.max_values));
  }
  if (key_comparisons > limits.max_key_comparisons)
    throw ApiError(400, "an object of the body has too many members");
}

}  // namespace

Json parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    throw ApiError(400, "the body is empty: expected a JSON object");
  }
  check_structure(text, limits);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    throw ApiError(
        400, fmt::format("the body is not JSON: a syntax error or invalid UTF-8 near byte {}", error.byte));
  } catch (const Json::exception& error) {
    // 1e999 and the like.
    throw ApiError(400, "the body is not usable JSON: a number is out of range");
  }
}

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string shown(const Json& value) {
  if (value.is_object()) return fmt::format("an object of {} members", value.size());
  if (value.is_array()) return fmt::format("an array of {} items", value.size());
  std::string text = dump(value);
  constexpr size_t kShown = 80;
  if (text.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
    text = text.substr(0, end) + "...";
  }
  return text;
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) {
    throw ApiError(
        400, fmt::format("{}: expected an object, got {}", path_.empty() ? "the body" : path_, shown(object)),
        path_);
  }
}

const Json* Fields::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::string Fields::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::string Fields::path(std::string_view key, size_t i) const { return fmt::format("{}[{}]", path(key), i); }

std::optional<double> Fields::number(std::string_view key, double low, double high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number())
    bad_field(path(key), "expected a number from {} to {}, got {}", low, high, shown(*value));
  const double x = value->get<double>();
  if (!std::isfinite(x) || x < low || x > high) {
    bad_field(path(key), "expected a number from {} to {}, got {}", low, high, shown(*value));
  }
  return x;
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto refuse = [&] {
    bad_field(path(key), "expected an integer from {} to {}, got {}", low, high, shown(*value));
  };
  if (!value->is_number()) refuse();
  int64_t x = 0;
  if (value->is_number_float()) {
    // 16.0 is an integer to clients whose language has one number type. 2^53 bounds what a double holds.
    const double real = value->get<double>();
    if (real != std::floor(real) || std::abs(real) > 9007199254740992.0) refuse();
    x = static_cast<int64_t>(real);
  } else if (value->is_number_unsigned()) {
    const auto large = value->get<uint64_t>();
    if (large > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) refuse();
    x = static_cast<int64_t>(large);
  } else {
    x = value->get<int64_t>();
  }
  if (x < low || x > high) refuse();
  return x;
}

std::optional<bool> Fields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) bad_field(path(key), "expected true or false, got {}", shown(*value));
  return value->get<bool>();
}

std::optional<std::string> Fields::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) bad_field(path(key), "expected a string, got {}", shown(*value));
  return value->get<std::string>();
}

std::optional<std::string> Fields::one_of(std::string_view key,
                                          std::initializer_list<std::string_view> words) const {
  auto value = text(key);
  if (!value) return value;
  std::string list;
  for (const std::string_view word : words) {
    if (*value == word) return value;
    list.append(list.empty() ? "" : ", ").append(word);
  }
  bad_field(path(key), "expected one of {}, got {}", list, shown(*find(key)));
}

std::optional<Fields> Fields::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return Fields(*value, path(key));
}

const Json* Fields::array(std::string_view key, size_t max_items) const {
  const Json* value = find(key);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) bad_field(path(key), "expected an array, got {}", shown(*value));
  if (value->size() > max_items)
    bad_field(path(key), "expected at most {} items, got {}", max_items, value->size());
  return value;
}

std::string Fields::require_text(std::string_view key) const {
  auto value = text(key);
  if (!value) bad_field(path(key), "expected a string, got none");
  return *std::move(value);
}

const Json& Fields::require_array(std::string_view key, size_t max_items) const {
  const Json* value = array(key, max_items);
  if (value == nullptr) bad_field(path(key), "expected an array, got none");
  return *value;
}

void Fields::refuse(std::string_view key, std::string_view why) const { bad_field(path(key), "{}", why); }

void Fields::refuse_if_set(std::string_view key, std::string_view why) const {
  const Json* value = find(key);
  if (value == nullptr) return;
  const bool is_off = (value->is_boolean() && !value->get<bool>()) ||
                      (value->is_number() && value->get<double>() == 0.0) ||
                      (value->is_string() && value->get_ref<const std::string&>().empty()) ||
                      (value->is_structured() && value->empty());
  if (!is_off) refuse(key, why);
}

}  // namespace synod::server
