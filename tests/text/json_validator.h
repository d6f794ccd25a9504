// An independent check of a value against a schema, for the keywords that grammars support: written from the
// specification's words, by recursion over the value, sharing nothing with the compiler.
#pragma once

#include <regex.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "text/utf8.h"

namespace synod::grammar_testing {

class JsonValidator {
 public:
  using Json = nlohmann::json;
  explicit JsonValidator(Json root) : root_(std::move(root)) {}
  bool valid(const Json& value) const { return valid(root_, value); }

 private:
  static size_t n_characters(const std::string& text) {
    size_t n = 0;
    for (size_t pos = 0; pos < text.size(); ++n) pos += decode_utf8(text, pos).length;
    return n;
  }

  static bool is_type(const std::string& type, const Json& value) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  }

  bool valid(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.contains("$ref")) {
      const std::string ref = schema["$ref"];
      const Json& target = ref == "#" ? root_ : root_.at(Json::json_pointer(ref.substr(1)));
      if (!valid(target, value)) return false;
    }
    if (schema.contains("type")) {
      const Json& type = schema["type"];
      bool any = false;
      for (const Json& one : type.is_array() ? type : Json::array({type})) any = any || is_type(one, value);
      if (!any) return false;
    }
    if (schema.contains("enum")) {
      bool any = false;
      for (const Json& one : schema["enum"]) any = any || one == value;
      if (!any) return false;
    }
    if (schema.contains("const") && schema["const"] != value) return false;
    for (const Json& part : schema.value("allOf", Json::array())) {
      if (!valid(part, value)) return false;
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      if (!schema.contains(name)) continue;
      int n = 0;
      for (const Json& part : schema[name]) n += valid(part, value);
      if (n == 0 || (name[0] == 'o' && n != 1)) return false;
    }
    if (value.is_number() && !valid_number(schema, value.get<double>())) return false;
    if (value.is_string() && !valid_string(schema, value)) return false;
    if (value.is_array() && !valid_array(schema, value)) return false;
    return !value.is_object() || valid_object(schema, value);
  }

  static bool valid_number(const Json& schema, double value) {
    if (schema.contains("minimum") && value < schema["minimum"].get<double>()) return false;
    if (schema.contains("maximum") && value > schema["maximum"].get<double>()) return false;
    if (schema.contains("exclusiveMinimum") && value <= schema["exclusiveMinimum"].get<double>())
      return false;
    return !schema.contains("exclusiveMaximum") || value < schema["exclusiveMaximum"].get<double>();
  }

  static bool valid_string(const Json& schema, const std::string& value) {
    const size_t n = n_characters(value);
    if (schema.contains("minLength") && n < schema["minLength"].get<size_t>()) return false;
    if (schema.contains("maxLength") && n > schema["maxLength"].get<size_t>()) return false;
    if (!schema.contains("pattern")) return true;
    // POSIX: patterns of the tests keep to what it shares with ECMA-262.
    regex_t compiled;
    if (regcomp(&compiled, schema["pattern"].get<std::string>().c_str(), REG_EXTENDED | REG_NOSUB) != 0)
      return false;
    const bool found = regexec(&compiled, value.c_str(), 0, nullptr, 0) == 0;
    regfree(&compiled);
    return found;
  }

  bool valid_array(const Json& schema, const Json& value) const {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>()) return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<size_t>()) return false;
    const Json prefix = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size() ? !valid(prefix[i], value[i])
                            : schema.contains("items") && !valid(schema["items"], value[i])) {
        return false;
      }
    }
    return true;
  }

  bool valid_object(const Json& schema, const Json& value) const {
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    if (schema.contains("minProperties") && value.size() < schema["minProperties"].get<size_t>())
      return false;
    if (schema.contains("maxProperties") && value.size() > schema["maxProperties"].get<size_t>())
      return false;
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [name, member] : value.items()) {
      if (schema.contains("propertyNames") && !valid(schema["propertyNames"], name)) return false;
      if (properties.contains(name)) {
        if (!valid(properties[name], member)) return false;
      } else if (schema.contains("additionalProperties") && !valid(schema["additionalProperties"], member)) {
        return false;
      }
    }
    return true;
  }

  Json root_;
};

}  // namespace synod::grammar_testing
