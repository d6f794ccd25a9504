#include "models/tool_grammar.h"

#include <algorithm>

#include "base/error.h"

namespace synod {

SchemaReader::SchemaReader(const std::string& text) {
  root_ = text.empty() ? SchemaJson::object() : SchemaJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root_.is_object()) fail(Error::Kind::kUsage, "tool parameters: expected a JSON Schema object");
}

const SchemaJson& SchemaReader::resolve(const SchemaJson& schema) const {
  const SchemaJson* at = &schema;
  constexpr int kMaxHops = 32;
  for (int hop = 0; at->is_object() && at->contains("$ref"); ++hop) {
    const SchemaJson& ref = (*at)["$ref"];
    const std::string text = ref.is_string() ? ref.get<std::string>() : "";
    if (hop == kMaxHops) fail(Error::Kind::kUsage, "tool parameters: $ref {} leads to itself", text);
    const SchemaJson* target = nullptr;
    if (text == "#") target = &root_;
    if (text.rfind("#/", 0) == 0) {
      try {
        const SchemaJson::json_pointer pointer(text.substr(1));
        if (root_.contains(pointer)) target = &root_.at(pointer);
      } catch (const SchemaJson::exception&) {
      }
    }
    if (target == nullptr) fail(Error::Kind::kUsage, "tool parameters: $ref \"{}\" leads nowhere", text);
    at = target;
  }
  return *at;
}

std::vector<SchemaMember> SchemaReader::members(const SchemaJson& object) const {
  std::vector<SchemaMember> result;
  if (!object.contains("properties") || !object["properties"].is_object()) return result;
  const SchemaJson required = object.value("required", SchemaJson::array());
  for (const auto& [name, schema] : object["properties"].items()) {
    const bool is_required =
        required.is_array() && std::find(required.begin(), required.end(), name) != required.end();
    result.push_back({name, schema, is_required});
  }
  return result;
}

std::string schema_type(const SchemaJson& schema) {
  if (!schema.is_object() || !schema.contains("type") || !schema["type"].is_string()) return "";
  return schema["type"].get<std::string>();
}

Term ordered_members(GrammarBuilder& builder, const std::vector<std::pair<Term, bool>>& members,
                     Term separator) {
  // From the last to the first; rules, because each is used twice and copies would double with every member.
  Term after = builder.empty();  // what may follow when a member stands before
  Term first = builder.empty();  // when none does
  for (size_t i = members.size(); i-- > 0;) {
    const auto& [member, is_required] = members[i];
    const Term with_separator = builder.sequence({separator, member, after});
    const Term without = builder.sequence({member, after});
    const Term next_after = builder.declare("after");
    const Term next_first = builder.declare("first");
    builder.define(next_after, is_required ? with_separator : builder.choice({with_separator, after}));
    builder.define(next_first, is_required ? without : builder.choice({without, first}));
    after = next_after;
    first = next_first;
  }
  return first;
}

Term marker(GrammarBuilder& builder, const Tokenizer& tokenizer, std::string_view text) {
  const auto id = tokenizer.find(text);
  return id ? builder.token(*id) : builder.text(text);
}

}  // namespace synod
