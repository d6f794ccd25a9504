#include "models/json_text.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/dialogue.h"
#include "models/marked_parser.h"
#include "text/jinja/value.h"

namespace synod {
namespace {

constexpr int kMaxDepth = 128;

void append(std::string& out, const nlohmann::ordered_json& value) {
  if (value.is_string()) {
    out += '"';
    append_json_escaped(out, value.get_ref<const std::string&>());
    out += '"';
  } else if (value.is_object() || value.is_array()) {
    out += value.is_object() ? '{' : '[';
    bool first = true;
    for (const auto& [key, item] : value.items()) {
      if (!first) out += ", ";
      first = false;
      if (value.is_object()) {
        out += '"';
        append_json_escaped(out, key);
        out += "\": ";
      }
      append(out, item);
    }
    out += value.is_object() ? '}' : ']';
  } else if (value.is_number_float()) {
    out += jinja::float_repr(value.get<double>());
  } else {
    out += value.dump();
  }
}

}  // namespace

nlohmann::ordered_json parse_object(std::string_view text, const std::string& what) {
  if (!is_json(text, kMaxDepth)) {
    fail(Error::Kind::kUsage, "{}: expected a JSON object nested at most {} deep, got {}", what, kMaxDepth,
         text.substr(0, 64));
  }
  nlohmann::ordered_json value = nlohmann::ordered_json::parse(text.begin(), text.end());
  if (!value.is_object()) {
    fail(Error::Kind::kUsage, "{}: expected a JSON object, got {}", what, value.type_name());
  }
  return value;
}

std::string python_json(const nlohmann::ordered_json& value) {
  std::string out;
  append(out, value);
  return out;
}

nlohmann::ordered_json tool_object(const Tool& tool) {
  nlohmann::ordered_json function = {{"name", tool.name}};
  if (!tool.description.empty()) function["description"] = tool.description;
  if (!tool.parameters.empty()) {
    function["parameters"] = parse_object(tool.parameters, "the parameters of tool " + tool.name);
  }
  return {{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace synod
