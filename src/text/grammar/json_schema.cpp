// JSON Schema to terms: one rule per goal (a set of schemas that hold together), made when something asks for
// it, so that recursion through references is recursion of rules. Rules are defined from a work list: nesting
// costs no stack.
#include "text/grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "text/utf8.h"

namespace synod {

using Id = SchemaTree::Id;
using Type = SchemaTree::Type;

SchemaCompiler::SchemaCompiler(GrammarBuilder& builder, const JsonOptions& options, const SchemaTree& tree)
    : b_(builder), json_(builder, options), options_(options), tree_(tree) {}

Term SchemaCompiler::run() {
  Goal root;
  root.add(0);
  const Term term = rule_of(root);
  while (!work_.empty()) {
    const auto [goal, rule] = std::move(work_.back());
    work_.pop_back();
    b_.define(rule, compile(goal), "schema " + tree_.pointer(goal.parts[0].schema));
  }
  return term;
}

Term SchemaCompiler::rule_of(const Goal& goal) {
  if (goal.parts.empty()) return json_.value();
  const auto [entry, added] = rules_.try_emplace(goal.key());
  if (!added) return entry->second;
  constexpr size_t kMaxGoals = 50'000;
  if (rules_.size() > kMaxGoals) {
    tree_.complain(goal.parts[0].schema,
                   fmt::format("the schema needs more than {} rules; simplify it", kMaxGoals));
  }
  entry->second = b_.declare(tree_.pointer(goal.parts[0].schema));
  work_.emplace_back(goal, entry->second);
  return entry->second;
}

Goal SchemaCompiler::with_choice(const Shape& shape, const Shape::Group& group, Id alternative) const {
  Goal next = shape.expanded;
  next.parts[group.part].decided |= group.bit;
  next.add(alternative, 0, next.parts[group.part].schema);
  return next;
}

Term SchemaCompiler::compile(const Goal& goal) {
  const Shape shape = collect_shape(tree_, goal);
  if (shape.impossible) return b_.never();
  if (!shape.groups.empty()) {
    const Shape::Group& group = shape.groups[0];
    const auto& alternatives = tree_.at(group.list).items;
    constexpr uint32_t kOneOf = 2;
    if (group.bit == kOneOf) check_exclusive(tree_, shape, group);
    std::vector<Term> terms;
    for (const Id alternative : alternatives)
      terms.push_back(rule_of(with_choice(shape, group, alternative)));
    return b_.choice(std::move(terms));
  }
  if (shape.values) return values(shape);
  std::vector<Term> kinds;
  if (shape.types & Shape::kNull) kinds.push_back(json_.null());
  if (shape.types & Shape::kBoolean) kinds.push_back(json_.boolean());
  if (shape.types & Shape::kNumber) kinds.push_back(number(shape));
  if (shape.types & Shape::kString) kinds.push_back(string(shape));
  if (shape.types & Shape::kArray) kinds.push_back(array(shape));
  if (shape.types & Shape::kObject) kinds.push_back(object(shape));
  return b_.choice(std::move(kinds));
}

Term SchemaCompiler::number(const Shape& shape) {
  const bool whole_only = !(shape.types & Shape::kFraction);
  if (!shape.low && !shape.high) return whole_only ? json_.integer() : json_.number();
  return json_.bounded_number(shape.low, shape.high, whole_only);
}

// A longer text than this is never asked for; the bound only has to hold.
Count SchemaCompiler::capped(Count count, Id place) const {
  const auto most = int64_t(b_.limits().max_repeat);
  if (count.min > most) tree_.complain(place, fmt::format("lower bounds above {} are not supported", most));
  if (count.max > most) count.max = most;
  return count;
}

Term SchemaCompiler::string(const Shape& shape) {
  const Id place = shape.expanded.parts[0].schema;
  const Count length = capped(shape.length, place);
  if (length.max >= 0 && length.max < length.min) return b_.never();
  const size_t n_patterns = shape.patterns.size() + (shape.format ? 1 : 0);
  if (n_patterns > 1) tree_.complain(place, "more than one pattern or format at once is not supported");
  if (n_patterns == 0) return json_.string(length);
  const Id source = shape.format ? shape.format_place : shape.patterns[0];
  const std::string& pattern = shape.format ? *shape.format : tree_.at(source).text;
  return json_.string_of(json_pattern(json_, pattern, length, "schema: " + tree_.pointer(source)));
}

Term SchemaCompiler::array(const Shape& shape) {
  const Id place = shape.expanded.parts[0].schema;
  const Count count = capped(shape.n_items, place);
  if (count.max >= 0 && count.max < count.min) return b_.never();
  const Term item = shape.no_more_items ? b_.never() : rule_of(shape.items ? *shape.items : Goal{});
  const auto at_most = [&](size_t n) { return count.max < 0 || int64_t(n) < count.max; };
  // From the end: what may follow when the first n items are there.
  const size_t n_prefix = std::min(shape.prefix.size(), count.max < 0 ? SIZE_MAX : size_t(count.max));
  const Term close = b_.sequence({json_.space(), b_.text("]")});
  const auto more_min = int64_t(count.min > n_prefix ? count.min - n_prefix : 0);
  const int64_t more_max = count.max < 0 ? -1 : count.max - int64_t(n_prefix);
  if (n_prefix == 0) {
    std::vector<Term> alternatives;
    if (count.min == 0) alternatives.push_back(b_.text("]"));
    if (at_most(0)) {
      const Term rest = b_.repeat(b_.sequence({json_.comma(), item}), std::max<int64_t>(more_min - 1, 0),
                                  more_max < 0 ? -1 : more_max - 1);
      alternatives.push_back(b_.sequence({item, rest, close}));
    }
    return b_.sequence({b_.text("["), json_.space(), b_.choice(std::move(alternatives))});
  }
  Term after = b_.sequence({b_.repeat(b_.sequence({json_.comma(), item}), more_min, more_max), close});
  for (size_t n = n_prefix; n-- > 0;) {
    const Term next = b_.declare("items");
    std::vector<Term> alternatives;
    if (n >= count.min) alternatives.push_back(n == 0 ? b_.text("]") : close);
    std::vector<Term> more;
    if (n > 0) more.push_back(json_.comma());
    more.push_back(rule_of(shape.prefix[n]));
    more.push_back(after);
    alternatives.push_back(b_.sequence(std::move(more)));
    b_.define(next, b_.choice(std::move(alternatives)));
    after = next;
  }
  return b_.sequence({b_.text("["), json_.space(), after});
}

Term SchemaCompiler::key_of(const Shape& shape) {
  std::vector<std::string> names;
  for (const Shape::Property& property : shape.properties) names.push_back(property.name);
  if (shape.names.parts.empty()) return names.empty() ? json_.string({}) : json_.plain_key_except(names);
  const Shape of_names = collect_shape(tree_, shape.names);
  const Id place = shape.names.parts[0].schema;
  const bool any_string = (of_names.types & Shape::kString) && !of_names.values && of_names.groups.empty() &&
                          !of_names.impossible && of_names.patterns.empty() && !of_names.format &&
                          of_names.length.min == 0 && of_names.length.max < 0;
  if (any_string) return names.empty() ? json_.string({}) : json_.plain_key_except(names);
  if (!names.empty()) tree_.complain(place, "propertyNames beside named properties is not supported");
  if (!of_names.groups.empty()) tree_.complain(place, "alternatives in propertyNames are not supported");
  if (of_names.impossible || !(of_names.types & Shape::kString)) return b_.never();
  if (!of_names.values) return string(of_names);
  std::vector<std::string> keys;
  for (const Id id : *of_names.values) {
    if (tree_.at(id).type == Type::kString && length_fits(of_names, tree_.at(id).text))
      keys.push_back(tree_.compact(id));
  }
  return b_.any_of_texts(std::move(keys));
}

Term SchemaCompiler::object(const Shape& shape) {
  const Id place = shape.expanded.parts[0].schema;
  const auto& properties = shape.properties;
  const auto n_required =
      size_t(std::count_if(properties.begin(), properties.end(), [](const auto& p) { return p.required; }));
  Count count = shape.n_properties;
  if (count.min <= n_required) count.min = 0;
  if (!shape.additional && count.max >= int64_t(properties.size())) count.max = -1;
  if ((count.min > 0 || count.max >= 0) && !(properties.empty() && shape.additional)) {
    tree_.complain(place,
                   "minProperties and maxProperties are supported for objects without named properties only");
  }
  // Two pairs may share a key, which counts once.
  if (count.min > 1) tree_.complain(place, "minProperties above 1 is not supported");
  count = capped(count, place);
  if (count.max >= 0 && count.max < count.min) return b_.never();
  std::vector<Term> pairs;
  for (const Shape::Property& property : properties) {
    pairs.push_back(b_.sequence({json_.quoted(property.name), json_.colon(), rule_of(property.goal)}));
  }
  const Term close = b_.sequence({json_.space(), b_.text("}")});
  Ends ends{b_.text("}"), close};
  if (shape.additional) {
    const Term pair = b_.sequence({key_of(shape), json_.colon(), rule_of(*shape.additional)});
    const Term next = b_.sequence({json_.comma(), pair});
    std::vector<Term> none_yet;
    if (count.min == 0) none_yet.push_back(b_.text("}"));
    if (count.max != 0) {
      none_yet.push_back(b_.sequence(
          {pair,
           b_.repeat(next, std::max<int64_t>(int64_t(count.min) - 1, 0), count.max < 0 ? -1 : count.max - 1),
           close}));
    }
    ends.empty_so_far = b_.choice(std::move(none_yet));
    ends.after_some = b_.sequence({b_.repeat(next, 0), close});
  }
  constexpr size_t kMaxUnordered = 8;
  const bool any_order =
      options_.any_key_order && properties.size() > 1 && properties.size() <= kMaxUnordered;
  const Term body = any_order ? unordered(shape, pairs, ends) : ordered(shape, pairs, ends);
  return b_.sequence({b_.text("{"), json_.space(), body});
}

// Properties from the i-th on, in order; what comes first has no comma before it.
Term SchemaCompiler::ordered(const Shape& shape, const std::vector<Term>& pairs, const Ends& ends) {
  Term first = ends.empty_so_far, later = ends.after_some;
  for (size_t i = pairs.size(); i-- > 0;) {
    const bool required = shape.properties[i].required;
    const Term take_first = b_.sequence({pairs[i], later});
    const Term take_later = b_.sequence({json_.comma(), pairs[i], later});
    const Term next_first = b_.declare("properties"), next_later = b_.declare("properties");
    b_.define(next_first, required ? take_first : b_.choice({take_first, first}));
    b_.define(next_later, required ? take_later : b_.choice({take_later, later}));
    first = next_first;
    later = next_later;
  }
  return first;
}

// One rule per set of properties already written.
Term SchemaCompiler::unordered(const Shape& shape, const std::vector<Term>& pairs, const Ends& ends) {
  const size_t n = pairs.size();
  uint32_t required = 0;
  for (size_t i = 0; i < n; ++i) required |= shape.properties[i].required ? uint32_t(1) << i : 0;
  std::vector<Term> rules;
  for (uint32_t set = 0; set < uint32_t(1) << n; ++set) rules.push_back(b_.declare("properties"));
  for (uint32_t set = 0; set < uint32_t(1) << n; ++set) {
    std::vector<Term> alternatives;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t bit = uint32_t(1) << i;
      if (set & bit) continue;
      std::vector<Term> parts;
      if (set != 0) parts.push_back(json_.comma());
      parts.push_back(pairs[i]);
      parts.push_back(rules[set | bit]);
      alternatives.push_back(b_.sequence(std::move(parts)));
    }
    if ((set & required) == required) alternatives.push_back(set == 0 ? ends.empty_so_far : ends.after_some);
    b_.define(rules[set], b_.choice(std::move(alternatives)));
  }
  return rules[0];
}

bool SchemaCompiler::length_fits(const Shape& shape, const std::string& text) const {
  size_t n = 0;
  for (size_t pos = 0; pos < text.size(); ++n) pos += decode_utf8(text, pos).length;
  return n >= shape.length.min && (shape.length.max < 0 || int64_t(n) <= shape.length.max);
}

// The listed values that satisfy the rest of the shape.
Term SchemaCompiler::values(const Shape& shape) {
  std::vector<std::string> scalars;
  std::vector<Term> terms;
  for (const Id id : *shape.values) {
    if (!value_fits(shape, id)) continue;
    const bool compound = tree_.at(id).type == Type::kArray || tree_.at(id).type == Type::kObject;
    if (compound) {
      terms.push_back(literal(id));
    } else {
      scalars.push_back(tree_.compact(id));
    }
  }
  if (!scalars.empty()) terms.push_back(b_.any_of_texts(std::move(scalars)));
  return b_.choice(std::move(terms));
}

bool SchemaCompiler::value_fits(const Shape& shape, Id id) const {
  const SchemaTree::Node& node = tree_.at(id);
  const auto is = [&](uint32_t type) { return (shape.types & type) != 0; };
  switch (node.type) {
    case Type::kNull:
      return is(Shape::kNull);
    case Type::kBoolean:
      return is(Shape::kBoolean);
    case Type::kInteger:
    case Type::kUnsigned:
    case Type::kDouble: {
      const bool whole = tree_.compact(id).find_first_of(".e") == std::string::npos;
      return is(whole ? Shape::kInteger : Shape::kFraction) && number_fits(shape, node);
    }
    case Type::kString:
      if (!shape.patterns.empty() || shape.format) {
        tree_.complain(id, "enum and const beside a pattern or format are not supported");
      }
      return is(Shape::kString) && length_fits(shape, node.text);
    case Type::kArray:
      if (is(Shape::kArray) && (!shape.prefix.empty() || shape.items || shape.no_more_items ||
                                shape.n_items.min > 0 || shape.n_items.max >= 0)) {
        tree_.complain(id, "an array in enum or const beside other array keywords is not supported");
      }
      return is(Shape::kArray);
    case Type::kObject:
      if (is(Shape::kObject) &&
          (!shape.properties.empty() || !shape.additional || !shape.additional->parts.empty() ||
           !shape.names.parts.empty() || shape.n_properties.min > 0 || shape.n_properties.max >= 0)) {
        tree_.complain(id, "an object in enum or const beside other object keywords is not supported");
      }
      return is(Shape::kObject);
  }
  return false;
}

// An array or object of an enum, with the model's spacing. Nested as deep as the schema, which is bounded.
Term SchemaCompiler::literal(Id id) {
  const SchemaTree::Node& node = tree_.at(id);
  if (node.type != Type::kArray && node.type != Type::kObject) return b_.text(tree_.compact(id));
  const bool is_object = node.type == Type::kObject;
  std::vector<Term> parts{b_.text(is_object ? "{" : "["), json_.space()};
  for (size_t i = 0; i < node.items.size(); ++i) {
    if (i > 0) parts.push_back(json_.comma());
    if (is_object) {
      parts.push_back(json_.quoted(node.keys[i]));
      parts.push_back(json_.colon());
    }
    parts.push_back(literal(node.items[i]));
  }
  if (!node.items.empty()) parts.push_back(json_.space());
  parts.push_back(b_.text(is_object ? "}" : "]"));
  return b_.sequence(std::move(parts));
}

Term GrammarBuilder::json_schema(std::string_view schema, const JsonOptions& options) {
  if (schema.size() > limits_.max_source_bytes) {
    fail(Error::Kind::kUsage, "schema: expected at most {} bytes, got {}", limits_.max_source_bytes,
         schema.size());
  }
  const SchemaTree tree(schema, limits_.max_depth);
  return SchemaCompiler(*this, options, tree).run();
}

Term GrammarBuilder::json_space(const JsonOptions& options) { return JsonTerms(*this, options).space(); }
Term GrammarBuilder::json_value(const JsonOptions& options) { return JsonTerms(*this, options).value(); }
Term GrammarBuilder::json_object(const JsonOptions& options) { return JsonTerms(*this, options).object(); }

}  // namespace synod
