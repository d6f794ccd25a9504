#include "models/deepseek4/tool_grammar.h"

#include <algorithm>

namespace synod::deepseek4 {
namespace {

class BlockGrammar {
 public:
  BlockGrammar(GrammarBuilder& builder, const Tokenizer& tokenizer)
      : b_(builder), mark_(marker(builder, tokenizer, "｜DSML｜")) {}

  // What follows the first "<" and mark.
  Term rest_of_block(std::span<const Tool> tools, int64_t max_calls) {
    std::vector<Term> invokes;
    for (const Tool& tool : tools) invokes.push_back(invoke(tool));
    const Term one = b_.choice(invokes);
    const Term more = b_.repeat(b_.sequence({b_.text("\n"), one}), 0, max_calls < 0 ? -1 : max_calls - 1);
    return b_.sequence({b_.text("tool_calls>\n"), one, more, b_.text("\n</"), mark_, b_.text("tool_calls>")});
  }
  Term mark() const { return mark_; }

 private:
  Term invoke(const Tool& tool) {
    const SchemaReader reader(tool.parameters);
    const SchemaJson& root = reader.resolve(reader.root());
    std::vector<std::pair<Term, bool>> parameters;
    for (const SchemaMember& m : reader.members(root)) {
      parameters.emplace_back(parameter(b_.text(m.name), m.schema, reader), m.is_required);
    }
    Term body = ordered_members(b_, parameters, b_.text("\n"));
    if (parameters.empty() && !root.contains("properties")) {
      const Term name =
          b_.repeat(b_.characters({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '-'}}), 1);
      const Term any = parameter(name, SchemaJson::object(), reader);
      body = b_.optional(b_.sequence({any, b_.repeat(b_.sequence({b_.text("\n"), any}), 0)}));
    }
    return b_.sequence({b_.text("<"), mark_, b_.text("invoke name=\"" + tool.name + "\">\n"), body,
                        b_.text("\n</"), mark_, b_.text("invoke>")});
  }

  Term parameter(Term name, const SchemaJson& given, const SchemaReader& reader) {
    const SchemaJson& schema = reader.resolve(given);
    const auto tagged = [&](const char* is_string, Term value) {
      return b_.sequence({b_.text("<"), mark_, b_.text("parameter name=\""), name,
                          b_.text(std::string("\" string=\"") + is_string + "\">"), value, b_.text("</"),
                          mark_, b_.text("parameter>")});
    };
    std::vector<Term> choices;
    if (const auto texts = string_values(schema)) choices.push_back(tagged("true", *texts));
    if (const auto json = json_values(schema, reader)) choices.push_back(tagged("false", *json));
    return choices.empty() ? b_.never() : b_.choice(choices);
  }

  static bool has_type(const SchemaJson& schema, const std::string& type) {
    if (!schema.contains("type")) return true;
    const SchemaJson& t = schema["type"];
    return t.is_array() ? std::find(t.begin(), t.end(), type) != t.end() : t == type;
  }

  // The raw texts that a string parameter may have; nullopt where it may be none.
  std::optional<Term> string_values(const SchemaJson& schema) {
    if (!schema.is_object() || schema.empty()) return b_.repeat(b_.any_character(), 0);
    const SchemaJson listed =
        schema.contains("const") ? SchemaJson::array({schema["const"]}) : schema.value("enum", SchemaJson());
    if (listed.is_array()) {
      std::vector<std::string> texts;
      for (const SchemaJson& v : listed) {
        if (v.is_string()) texts.push_back(v.get<std::string>());
      }
      if (texts.empty()) return std::nullopt;
      return b_.any_of_texts(texts);
    }
    const bool is_open = !schema.contains("type") && !schema.contains("properties");
    if (!is_open && !has_type(schema, "string")) return std::nullopt;
    if (!schema.contains("type") && schema.contains("properties")) return std::nullopt;
    const auto length = [&](const char* key, int64_t otherwise) {
      return schema.contains(key) && schema[key].is_number_integer() && schema[key] >= 0
                 ? schema[key].get<int64_t>()
                 : otherwise;
    };
    return b_.repeat(b_.any_character(), length("minLength", 0), length("maxLength", -1));
  }

  // Everything else, as JSON.
  std::optional<Term> json_values(const SchemaJson& schema, const SchemaReader& reader) {
    if (!schema.is_object() || schema.empty()) return b_.json_value();
    SchemaJson rest = schema;
    if (rest.contains("const")) {
      if (rest["const"].is_string()) return std::nullopt;
    } else if (rest.contains("enum") && rest["enum"].is_array()) {
      SchemaJson others = SchemaJson::array();
      for (const SchemaJson& v : rest["enum"]) {
        if (!v.is_string()) others.push_back(v);
      }
      if (others.empty()) return std::nullopt;
      rest["enum"] = others;
    } else if (rest.contains("type")) {
      SchemaJson types = rest["type"].is_array() ? rest["type"] : SchemaJson::array({rest["type"]});
      SchemaJson others = SchemaJson::array();
      for (const SchemaJson& t : types) {
        if (t != "string") others.push_back(t);
      }
      if (others.empty()) return std::nullopt;
      rest["type"] = others.size() == 1 ? others[0] : others;
    }
    for (const char* key : {"$defs", "definitions"}) {
      if (reader.root().contains(key)) rest[key] = reader.root()[key];  // where its $refs point
    }
    return b_.json_schema(rest.dump());
  }

  GrammarBuilder& b_;
  Term mark_;
};

}  // namespace

Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls) {
  BlockGrammar grammar(builder, tokenizer);
  const Term rest = grammar.rest_of_block(tools, max_calls);
  return builder.sequence({builder.optional(builder.text("\n\n")), builder.text("<"), grammar.mark(), rest});
}

Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls) {
  BlockGrammar grammar(builder, tokenizer);
  GrammarBuilder::Triggers triggers;
  if (const auto id = tokenizer.find("｜DSML｜")) {
    triggers.tokens.push_back(*id);
  } else {
    triggers.texts.emplace_back("<｜DSML｜tool_calls>");
    triggers.texts.back().resize(triggers.texts.back().size() - std::string_view("tool_calls>").size());
  }
  // One block holds all calls of a reply.
  return builder.lazy(triggers, grammar.rest_of_block(tools, max_calls), 0, 1);
}

}  // namespace synod::deepseek4
