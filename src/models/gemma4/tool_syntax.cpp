#include "models/gemma4/tool_syntax.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/json_text.h"
#include "text/jinja/value.h"

namespace synod::gemma4 {
namespace {

using json = nlohmann::ordered_json;

constexpr std::string_view kQuote = "<|\"|>";

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return result;
}

// Members by key without regard to case; equal ones stay in order.
std::vector<std::pair<std::string, const json*>> sorted(const json& object) {
  std::vector<std::pair<std::string, const json*>> members;
  for (const auto& [key, value] : object.items()) members.emplace_back(key, &value);
  std::stable_sort(members.begin(), members.end(),
                   [](const auto& a, const auto& b) { return lower(a.first) < lower(b.first); });
  return members;
}

void write_string(std::string_view text, PromptBuilder& prompt) {
  prompt.markup(kQuote);
  prompt.text(text);
  prompt.markup(kQuote);
}

// `quoted_keys`: inside declarations nested keys stand between delimiters too.
void write_value(const json& value, bool quoted_keys, PromptBuilder& prompt);

void write_members(const json& object, bool quoted_keys, PromptBuilder& prompt) {
  bool first = true;
  for (const auto& [key, value] : sorted(object)) {
    if (!first) prompt.markup(",");
    first = false;
    if (quoted_keys) {
      write_string(key, prompt);
    } else {
      prompt.text(key);
    }
    prompt.markup(":");
    write_value(*value, quoted_keys, prompt);
  }
}

void write_value(const json& value, bool quoted_keys, PromptBuilder& prompt) {
  if (value.is_string()) {
    write_string(value.get_ref<const std::string&>(), prompt);
  } else if (value.is_object()) {
    prompt.markup("{");
    write_members(value, quoted_keys, prompt);
    prompt.markup("}");
  } else if (value.is_array()) {
    prompt.markup("[");
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) prompt.markup(",");
      write_value(value[i], quoted_keys, prompt);
    }
    prompt.markup("]");
  } else if (value.is_number_float()) {
    prompt.markup(jinja::float_repr(value.get<double>()));  // as the published template prints numbers
  } else {
    prompt.markup(value.dump());
  }
}

// Separates the attributes of one object.
class Attributes {
 public:
  explicit Attributes(PromptBuilder& prompt) : prompt_(prompt) {}
  void name(std::string_view key) {
    comma();
    prompt_.markup(key);
    prompt_.markup(":");
  }
  void text_name(std::string_view key) {  // one that the client chose
    comma();
    prompt_.text(key);
    prompt_.markup(":");
  }

 private:
  void comma() {
    if (any_) prompt_.markup(",");
    any_ = true;
  }
  PromptBuilder& prompt_;
  bool any_ = false;
};

const json* member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string_view string_member(const json& object, const char* key) {
  const json* value = member(object, key);
  return value != nullptr && value->is_string() ? std::string_view(value->get_ref<const std::string&>())
                                                : std::string_view();
}

// "type": a name, or a list of names of which "null" means nullable.
struct Type {
  std::string name;  // upper case, "" when there is none
  bool nullable = false;
};

Type type_of(const json& schema) {
  Type type;
  if (const json* nullable = member(schema, "nullable")) type.nullable = *nullable == true;
  const json* value = member(schema, "type");
  if (value == nullptr) return type;
  if (value->is_string()) type.name = upper(value->get_ref<const std::string&>());
  if (!value->is_array()) return type;
  for (const json& option : *value) {
    if (!option.is_string()) continue;
    if (option == "null") {
      type.nullable = true;
    } else if (type.name.empty()) {
      type.name = upper(option.get_ref<const std::string&>());
    }
  }
  return type;
}

void write_property(const json& schema, PromptBuilder& prompt);

void write_properties(const json& properties, PromptBuilder& prompt) {
  bool first = true;
  for (const auto& [key, schema] : sorted(properties)) {
    if (!first) prompt.markup(",");
    first = false;
    prompt.text(key);
    prompt.markup(":{");
    if (schema->is_object()) write_property(*schema, prompt);
    prompt.markup("}");
  }
}

void write_required(const json& names, PromptBuilder& prompt) {
  prompt.markup("[");
  bool first = true;
  for (const json& name : names) {
    if (!name.is_string()) continue;
    if (!first) prompt.markup(",");
    first = false;
    write_string(name.get_ref<const std::string&>(), prompt);
  }
  prompt.markup("]");
}

// What an array holds: all members of its schema, sorted.
void write_items(const json& items, PromptBuilder& prompt) {
  Attributes attributes(prompt);
  for (const auto& [key, value] : sorted(items)) {
    if (value->is_null()) continue;
    if (key == "properties" && value->is_object()) {
      attributes.name(key);
      prompt.markup("{");
      write_properties(*value, prompt);
      prompt.markup("}");
    } else if (key == "required" && value->is_array()) {
      attributes.name(key);
      write_required(*value, prompt);
    } else if (key == "type") {
      const Type type = type_of(items);
      if (type.name.empty()) continue;
      attributes.name(key);
      write_string(type.name, prompt);
    } else {
      attributes.text_name(key);
      write_value(*value, true, prompt);
    }
  }
}

void write_property(const json& schema, PromptBuilder& prompt) {
  Attributes attributes(prompt);
  const Type type = type_of(schema);
  if (const std::string_view text = string_member(schema, "description"); !text.empty()) {
    attributes.name("description");
    write_string(text, prompt);
  }
  if (const json* options = member(schema, "enum");
      type.name == "STRING" && options != nullptr && !options->empty()) {
    attributes.name("enum");
    write_value(*options, true, prompt);
  }
  if (const json* items = member(schema, "items");
      type.name == "ARRAY" && items != nullptr && items->is_object() && !items->empty()) {
    attributes.name("items");
    prompt.markup("{");
    write_items(*items, prompt);
    prompt.markup("}");
  }
  if (type.nullable) {
    attributes.name("nullable");
    prompt.markup("true");
  }
  if (type.name == "OBJECT") {
    if (const json* properties = member(schema, "properties");
        properties != nullptr && properties->is_object()) {
      attributes.name("properties");
      prompt.markup("{");
      write_properties(*properties, prompt);
      prompt.markup("}");
    }
    if (const json* required = member(schema, "required"); required != nullptr && required->is_array()) {
      attributes.name("required");
      write_required(*required, prompt);
    }
  }
  if (!type.name.empty()) {
    attributes.name("type");
    write_string(type.name, prompt);
  }
}

}  // namespace

void write_declaration(const Tool& tool, PromptBuilder& prompt) {
  prompt.markup("declaration:");
  prompt.text(tool.name);
  prompt.markup("{description:");
  write_string(tool.description, prompt);
  if (!tool.parameters.empty()) {
    const json schema = parse_object(tool.parameters, "the parameters of tool " + tool.name);
    prompt.markup(",parameters:{");
    Attributes attributes(prompt);
    if (const json* properties = member(schema, "properties");
        properties != nullptr && properties->is_object() && !properties->empty()) {
      attributes.name("properties");
      prompt.markup("{");
      write_properties(*properties, prompt);
      prompt.markup("}");
    }
    if (const json* required = member(schema, "required");
        required != nullptr && required->is_array() && !required->empty()) {
      attributes.name("required");
      write_required(*required, prompt);
    }
    const Type type = type_of(schema);
    attributes.name("type");
    write_string(type.name.empty() ? "OBJECT" : type.name, prompt);
    prompt.markup("}");
  }
  prompt.markup("}");
}

void write_call(const ToolCall& call, PromptBuilder& prompt) {
  prompt.markup("call:");
  prompt.text(call.name);
  prompt.markup("{");
  const json arguments = json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
  if (arguments.is_object()) {
    write_members(arguments, false, prompt);
  } else {
    prompt.text(call.arguments);
  }
  prompt.markup("}");
}

void write_response(std::string_view name, const ChatMessage& message, PromptBuilder& prompt) {
  prompt.markup("response:");
  prompt.text(name);
  prompt.markup("{");
  const std::string text = text_of(message);
  const json object =
      message.content_is_json ? json::parse(text, nullptr, /*allow_exceptions=*/false) : json();
  if (object.is_object()) {
    write_members(object, false, prompt);
  } else {
    prompt.markup("value:");
    write_string(text, prompt);
  }
  prompt.markup("}");
}

}  // namespace synod::gemma4
