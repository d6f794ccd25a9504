// The compiler behind GrammarBuilder::json_schema.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/builder.h"
#include "text/grammar/json_terms.h"
#include "text/grammar/schema_shape.h"
#include "text/grammar/schema_tree.h"

namespace synod {

class SchemaCompiler {
 public:
  SchemaCompiler(GrammarBuilder& builder, const JsonOptions& options, const SchemaTree& tree);
  Term run();

 private:
  // How an object ends: right after "{", and after at least one pair.
  struct Ends {
    Term empty_so_far, after_some;
  };
  Term rule_of(const Goal& goal);
  Term compile(const Goal& goal);
  Goal with_choice(const Shape& shape, const Shape::Group& group, SchemaTree::Id alternative) const;
  Term number(const Shape& shape);
  Term string(const Shape& shape);
  Term array(const Shape& shape);
  Term object(const Shape& shape);
  Term key_of(const Shape& shape);
  Term ordered(const Shape& shape, const std::vector<Term>& pairs, const Ends& ends);
  Term unordered(const Shape& shape, const std::vector<Term>& pairs, const Ends& ends);
  Term values(const Shape& shape);
  Term literal(SchemaTree::Id id);
  bool value_fits(const Shape& shape, SchemaTree::Id id) const;
  bool length_fits(const Shape& shape, const std::string& text) const;
  Count capped(Count count, SchemaTree::Id place) const;

  GrammarBuilder& b_;
  JsonTerms json_;
  JsonOptions options_;
  const SchemaTree& tree_;
  std::map<std::vector<uint32_t>, Term> rules_;
  std::vector<std::pair<Goal, Term>> work_;
};

// Throws kUsage unless the alternatives of a oneOf provably exclude each other (types, constants, required
// properties, ranges): then one of them matching means that no other does.
void check_exclusive(const SchemaTree& tree, const Shape& shape, const Shape::Group& group);

}  // namespace synod
