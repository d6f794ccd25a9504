#include "models/gemma4/tool_grammar.h"

#include <algorithm>

#include "base/error.h"

namespace synod::gemma4 {
namespace {

class CallGrammar {
 public:
  CallGrammar(GrammarBuilder& builder, const Tokenizer& tokenizer) : b_(builder), tokenizer_(tokenizer) {
    quote_ = marker(b_, tokenizer_, "<|\"|>");
    any_ = b_.declare("value");
    const Term name =
        b_.repeat(b_.characters({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}, {'-', '-'}}), 1);
    const Term member = b_.sequence({name, b_.text(":"), any_});
    any_object_ = b_.sequence({b_.text("{"), list_of(member), b_.text("}")});
    const Term plain = b_.json_schema(R"({"type":["number","boolean","null"]})", {.spaces = false});
    b_.define(any_, b_.choice({string_of(0, -1), plain, any_object_,
                               b_.sequence({b_.text("["), list_of(any_), b_.text("]")})}));
  }

  // "call:NAME{...}" and the closing marker.
  Term rest_of_call(const Tool& tool) {
    const SchemaReader reader(tool.parameters);
    reader_ = &reader;
    rules_.clear();
    return b_.sequence({b_.text("call:" + tool.name), object(reader.resolve(reader.root()), 0),
                        marker(b_, tokenizer_, "<tool_call|>")});
  }

 private:
  static constexpr int kMaxDepth = 32;

  Term list_of(Term item) {
    return b_.optional(b_.sequence({item, b_.repeat(b_.sequence({b_.text(","), item}), 0)}));
  }
  Term string_of(int64_t min, int64_t max) {
    return b_.sequence({quote_, b_.repeat(b_.any_character(), min, max), quote_});
  }

  Term literal(const SchemaJson& value) {
    if (value.is_string()) return b_.sequence({quote_, b_.text(value.get<std::string>()), quote_});
    if (value.is_structured()) return any_;
    return b_.text(value.dump());
  }

  Term object(const SchemaJson& schema, int depth) {
    std::vector<SchemaMember> members = reader_->members(schema);
    if (members.empty()) return schema.contains("properties") ? b_.text("{}") : any_object_;
    const auto in_this_order = [&] {
      std::vector<std::pair<Term, bool>> terms;
      for (const SchemaMember& m : members) {
        terms.emplace_back(b_.sequence({b_.text(m.name + ":"), value(m.schema, depth + 1)}), m.is_required);
      }
      return ordered_members(b_, terms, b_.text(","));
    };
    const Term declared = in_this_order();
    // The templates sort keys, so models know both orders.
    const auto by_name = [](const SchemaMember& x, const SchemaMember& y) { return x.name < y.name; };
    if (std::is_sorted(members.begin(), members.end(), by_name)) {
      return b_.sequence({b_.text("{"), declared, b_.text("}")});
    }
    std::sort(members.begin(), members.end(), by_name);
    return b_.sequence({b_.text("{"), b_.choice({declared, in_this_order()}), b_.text("}")});
  }

  Term value(const SchemaJson& given, int depth) {
    if (depth > kMaxDepth)
      fail(Error::Kind::kUsage, "tool parameters: nested deeper than {} levels", kMaxDepth);
    const SchemaJson& schema = reader_->resolve(given);
    if (!schema.is_object()) return any_;
    if (&schema != &given) return shared(schema, depth);
    return plain_value(schema, depth);
  }

  // Targets of $ref are rules, so that recursion ends.
  Term shared(const SchemaJson& schema, int depth) {
    const auto found = rules_.find(&schema);
    if (found != rules_.end()) return found->second;
    const Term rule = b_.declare("ref");
    rules_.emplace(&schema, rule);
    b_.define(rule, plain_value(schema, depth));
    return rule;
  }

  Term plain_value(const SchemaJson& schema, int depth) {
    if (schema.contains("const")) return literal(schema["const"]);
    std::vector<Term> choices;
    if (schema.contains("enum") && schema["enum"].is_array()) {
      for (const SchemaJson& v : schema["enum"]) choices.push_back(literal(v));
      return choices.empty() ? b_.never() : b_.choice(choices);
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key) || !schema[key].is_array()) continue;
      for (const SchemaJson& v : schema[key]) choices.push_back(value(v, depth + 1));
      return choices.empty() ? any_ : b_.choice(choices);
    }
    if (schema.contains("type") && schema["type"].is_array()) {
      for (const SchemaJson& type : schema["type"]) {
        SchemaJson one = schema;
        one["type"] = type;
        choices.push_back(plain_value(one, depth + 1));
      }
      return choices.empty() ? any_ : b_.choice(choices);
    }
    const std::string type = schema_type(schema);
    if (type == "string") return string_of(length(schema, "minLength", 0), length(schema, "maxLength", -1));
    if (type == "object" || (type.empty() && schema.contains("properties"))) return object(schema, depth);
    if (type == "array") return array(schema, depth);
    if (type.empty()) return any_;
    return b_.json_schema(schema.dump(),
                          {.spaces = false});  // numbers, booleans and null are written as in JSON
  }

  Term array(const SchemaJson& schema, int depth) {
    const Term item = schema.contains("items") ? value(schema["items"], depth + 1) : any_;
    const int64_t min = length(schema, "minItems", 0);
    const int64_t max = length(schema, "maxItems", -1);
    if (max == 0) return b_.text("[]");
    const Term more =
        b_.repeat(b_.sequence({b_.text(","), item}), std::max<int64_t>(0, min - 1), max < 0 ? -1 : max - 1);
    const Term some = b_.sequence({item, more});
    return b_.sequence({b_.text("["), min > 0 ? some : b_.optional(some), b_.text("]")});
  }

  static int64_t length(const SchemaJson& schema, const char* key, int64_t otherwise) {
    if (!schema.contains(key) || !schema[key].is_number_integer() || schema[key] < 0) return otherwise;
    return schema[key].get<int64_t>();
  }

  GrammarBuilder& b_;
  const Tokenizer& tokenizer_;
  const SchemaReader* reader_ = nullptr;
  std::map<const SchemaJson*, Term> rules_;
  Term quote_, any_, any_object_;
};

Term any_rest(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools) {
  CallGrammar grammar(builder, tokenizer);
  std::vector<Term> calls;
  for (const Tool& tool : tools) calls.push_back(grammar.rest_of_call(tool));
  return builder.choice(calls);
}

}  // namespace

Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls) {
  const Term call =
      builder.sequence({marker(builder, tokenizer, "<|tool_call>"), any_rest(builder, tokenizer, tools)});
  return builder.repeat(call, 1, max_calls);
}

Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer, std::span<const Tool> tools,
                    int64_t max_calls) {
  GrammarBuilder::Triggers triggers;
  if (const auto id = tokenizer.find("<|tool_call>")) {
    triggers.tokens.push_back(*id);
  } else {
    triggers.texts.emplace_back("<|tool_call>");
  }
  return builder.lazy(triggers, any_rest(builder, tokenizer, tools), 0, max_calls);
}

}  // namespace synod::gemma4
