// A family's tool calls as a grammar, so that a call can be demanded or held to its schema
// (Dialogue::tool_grammar).
//
// The other shape, one grammar of JSON for all families, would force models into a notation that they were
// not trained to write.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/dialogue.h"
#include "text/grammar/builder.h"

namespace synod {

class ToolGrammar {
 public:
  virtual ~ToolGrammar() = default;
  // The whole reply: 1 to max_calls calls of `tools` (at least one tool; max_calls < 0: any number).
  virtual Term required_calls(GrammarBuilder& builder, const Tokenizer& tokenizer,
                              std::span<const Tool> tools, int64_t max_calls) const = 0;
  // Free text in which calls, where there are any, follow their schemas.
  virtual Term optional_calls(GrammarBuilder& builder, const Tokenizer& tokenizer,
                              std::span<const Tool> tools, int64_t max_calls) const = 0;
};

// A JSON Schema as the families' grammars read it: types, properties, required, enum, const, items, anyOf,
// oneOf, $ref. What is not understood allows any value.
using SchemaJson = nlohmann::ordered_json;

struct SchemaMember {
  std::string name;
  SchemaJson schema;
  bool is_required = false;
};

class SchemaReader {
 public:
  // `text`: the object of Tool::parameters, "" for none. Throws kUsage.
  explicit SchemaReader(const std::string& text);
  const SchemaJson& root() const { return root_; }
  // Follows $ref (only into this document) until there is none. Throws kUsage for a dangling or circular one.
  const SchemaJson& resolve(const SchemaJson& schema) const;
  // Properties in their order.
  std::vector<SchemaMember> members(const SchemaJson& object) const;

 private:
  SchemaJson root_;
};

// "type" as text, "" where there is none or a list.
std::string schema_type(const SchemaJson& schema);
// The members in their order, those that are not required optional, with `separator` between neighbours.
Term ordered_members(GrammarBuilder& builder, const std::vector<std::pair<Term, bool>>& members,
                     Term separator);
// The id of a marker as a term, or its text where the vocabulary has no such token.
Term marker(GrammarBuilder& builder, const Tokenizer& tokenizer, std::string_view text);

}  // namespace synod
