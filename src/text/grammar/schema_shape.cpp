#include "text/grammar/schema_shape.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"

namespace synod {

using Id = SchemaTree::Id;
using Type = SchemaTree::Type;
using Node = SchemaTree::Node;

void Goal::add(Id schema, uint32_t decided, Id origin) {
  for (Part& part : parts) {
    if (part.schema == schema) {
      part.decided |= decided;
      return;
    }
  }
  parts.push_back({schema, decided, origin});
}

std::vector<uint32_t> Goal::key() const {
  std::vector<uint32_t> key;
  for (const Part part : parts) key.insert(key.end(), {part.schema, part.decided});
  return key;
}

const Shape::Property* Shape::property(const std::string& name) const {
  for (const Property& candidate : properties) {
    if (candidate.name == name) return &candidate;
  }
  return nullptr;
}

std::optional<DecimalBound> decimal_of(const Node& node) {
  std::string text = node.type == Type::kInteger    ? std::to_string(node.integer)
                     : node.type == Type::kUnsigned ? std::to_string(node.unsigned_value)
                                                    : fmt::format("{}", node.number);
  DecimalBound bound;
  if (text[0] == '-') {
    bound.negative = true;
    text.erase(0, 1);
  }
  long exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::stol(text.substr(e + 1));
    text.resize(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  long whole = long(point) + exponent;  // digits before the point
  constexpr long kMaxDigits = 40;
  if (whole > kMaxDigits || whole < -kMaxDigits) return std::nullopt;
  if (whole < 0) {
    digits.insert(0, size_t(-whole), '0');
    whole = 0;
  }
  if (size_t(whole) > digits.size()) digits.append(size_t(whole) - digits.size(), '0');
  bound.whole = digits.substr(0, size_t(whole));
  bound.fraction = digits.substr(size_t(whole));
  bound.whole.erase(0, std::min(bound.whole.find_first_not_of('0'), bound.whole.size()));
  if (bound.whole.empty()) bound.whole = "0";
  while (!bound.fraction.empty() && bound.fraction.back() == '0') bound.fraction.pop_back();
  if (bound.whole == "0" && bound.fraction.empty()) bound.negative = false;
  return bound;
}

int compare_decimals(const DecimalBound& a, const DecimalBound& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
                                               : a.whole.compare(b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  return a.negative ? -order : order;
}

bool number_fits(const Shape& shape, const Node& node) {
  if (!shape.low && !shape.high) return true;
  const auto value = decimal_of(node);
  if (!value) return false;
  if (shape.low) {
    const int order = compare_decimals(*value, *shape.low);
    if (order < 0 || (order == 0 && shape.low->exclusive)) return false;
  }
  if (shape.high) {
    const int order = compare_decimals(*value, *shape.high);
    if (order > 0 || (order == 0 && shape.high->exclusive)) return false;
  }
  return true;
}

namespace {

constexpr const char* kPatternDate =
    "^([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
    "02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-"
    "29)";
constexpr const char* kPatternTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

const std::map<std::string, std::string>& formats() {
  static const std::map<std::string, std::string> table{
      {"date", std::string(kPatternDate) + "$"},
      {"time", std::string("^") + kPatternTime},
      {"date-time", std::string(kPatternDate) + "T" + kPatternTime},
      {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
      {"ipv4",
       "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$"},
  };
  return table;
}

class Collector {
 public:
  Collector(const SchemaTree& tree) : tree_(tree) {}

  Shape run(const Goal& goal) {
    for (const Goal::Part& part : goal.parts) visit_part(goal, part);
    for (size_t i = 0; i < shape_.expanded.parts.size(); ++i) find_groups(i);
    merge_properties();
    merge_items();
    shape_.declared_types = shape_.types;
    if (!shape_.typed && !shape_.values && kinds_ != 0) shape_.types &= kinds_;
    return std::move(shape_);
  }

 private:
  struct Chain {
    Id schema;
    const Chain* outer;
  };
  // One schema's say about objects and arrays; merged when all are known.
  struct ObjectSide {
    std::vector<std::pair<std::string, Id>> properties;
    std::unordered_map<std::string, Id> by_name;
    Id additional = SchemaTree::kNone;
  };
  struct ArraySide {
    std::vector<Id> prefix;
    Id items = SchemaTree::kNone;
  };

  bool is_false(Id id) const { return tree_.at(id).type == Type::kBoolean && !tree_.at(id).boolean; }

  // An alternative that leads back to the schema it belongs to would never end.
  void visit_part(const Goal& goal, const Goal::Part& part) {
    std::vector<Id> owners;
    for (Id origin = part.origin; origin != SchemaTree::kNone;) {
      owners.push_back(origin);
      const auto owner = std::find_if(goal.parts.begin(), goal.parts.end(),
                                      [origin](const Goal::Part& other) { return other.schema == origin; });
      origin = owner == goal.parts.end() ? SchemaTree::kNone : owner->origin;
    }
    std::vector<Chain> chain(owners.size());
    for (size_t i = owners.size(); i-- > 0;) {
      chain[i] = {owners[i], i + 1 < owners.size() ? &chain[i + 1] : nullptr};
    }
    visit(part.schema, part.decided, chain.empty() ? nullptr : &chain[0], part.origin);
  }

  void visit(Id id, uint32_t decided, const Chain* outer, Id origin = SchemaTree::kNone) {
    constexpr int kMaxChain = 256;  // each link is a call on the stack
    int n_links = 0;
    for (const Chain* chain = outer; chain; chain = chain->outer) {
      if (chain->schema == id) tree_.complain(id, "refers to itself without anything in between");
      if (++n_links > kMaxChain) tree_.complain(id, "is reached through too many $ref and allOf in a row");
    }
    const bool known = std::any_of(shape_.expanded.parts.begin(), shape_.expanded.parts.end(),
                                   [id](const Goal::Part& part) { return part.schema == id; });
    shape_.expanded.add(id, decided, origin);
    if (known) return;
    const Node& node = tree_.at(id);
    if (node.type == Type::kBoolean) {
      shape_.impossible = shape_.impossible || !node.boolean;
      return;
    }
    if (node.type != Type::kObject) tree_.complain(id, "a schema is an object, true or false");
    const Chain chain{id, outer};
    ObjectSide object;
    ArraySide array;
    bool has_object = false, has_array = false;
    for (size_t i = 0; i < node.keys.size(); ++i) {
      keyword(id, node.keys[i], node.items[i], chain, object, has_object, array, has_array);
    }
    if (has_object) objects_.push_back(std::move(object));
    if (has_array) arrays_.push_back(std::move(array));
  }

  void keyword(Id schema, const std::string& name, Id value, const Chain& chain, ObjectSide& object,
               bool& has_object, ArraySide& array, bool& has_array) {
    if (name == "$ref") return visit(tree_.resolve(value), 0, &chain);
    if (name == "allOf") {
      for (const Id part : list_of_schemas(value)) visit(part, 0, &chain);
      return;
    }
    if (name == "anyOf" || name == "oneOf") return void(list_of_schemas(value));
    if (name == "type") return read_type(value);
    if (name == "enum") {
      if (tree_.at(value).type != Type::kArray) tree_.complain(value, "expected an array");
      return intersect_values(tree_.at(value).items);
    }
    if (name == "const") return intersect_values({value});
    if (name == "minimum" || name == "exclusiveMinimum") return bound(value, name[0] == 'e', true);
    if (name == "maximum" || name == "exclusiveMaximum") return bound(value, name[0] == 'e', false);
    if (name == "multipleOf") {
      kinds_ |= Shape::kNumber;
      if (!tree_.at(value).is_number() || tree_.at(value).number != 1) {
        tree_.complain(value, "only 1 is supported for multipleOf");
      }
      shape_.types &= ~uint32_t(Shape::kFraction);
      return;
    }
    if (name == "minLength") return at_least(value, shape_.length, Shape::kString);
    if (name == "maxLength") return at_most(value, shape_.length, Shape::kString);
    if (name == "pattern") {
      if (tree_.at(value).type != Type::kString) tree_.complain(value, "expected a string");
      kinds_ |= Shape::kString;
      shape_.patterns.push_back(value);
      return;
    }
    if (name == "format") return read_format(value);
    if (name == "prefixItems" || name == "items" || name == "additionalItems") {
      has_array = true;
      return read_items(schema, name, value, array);
    }
    if (name == "minItems") return at_least(value, shape_.n_items, Shape::kArray);
    if (name == "maxItems") return at_most(value, shape_.n_items, Shape::kArray);
    if (name == "properties") {
      has_object = true;
      return read_properties(value, object);
    }
    if (name == "additionalProperties") {
      has_object = true;
      kinds_ |= Shape::kObject;
      object.additional = value;
      return;
    }
    if (name == "required") {
      kinds_ |= Shape::kObject;
      if (tree_.at(value).type != Type::kArray) tree_.complain(value, "expected an array of strings");
      for (const Id item : tree_.at(value).items) {
        if (tree_.at(item).type != Type::kString) tree_.complain(item, "expected a string");
        if (required_names_.insert(tree_.at(item).text).second) required_.push_back(tree_.at(item).text);
      }
      return;
    }
    if (name == "propertyNames") {
      kinds_ |= Shape::kObject;
      shape_.names.add(value);
      return;
    }
    if (name == "minProperties") return at_least(value, shape_.n_properties, Shape::kObject);
    if (name == "maxProperties") return at_most(value, shape_.n_properties, Shape::kObject);
    if (name == "uniqueItems" || name == "unevaluatedItems") {
      const Node& node = tree_.at(value);
      const bool harmless = node.type == Type::kBoolean && node.boolean == (name == "unevaluatedItems");
      if (harmless) return;
      tree_.complain(value, fmt::format("{} is not supported", name));
    }
    static const std::set<std::string, std::less<>> kUnsupported{"not",
                                                                 "if",
                                                                 "then",
                                                                 "else",
                                                                 "patternProperties",
                                                                 "dependentRequired",
                                                                 "contains",
                                                                 "minContains",
                                                                 "maxContains",
                                                                 "dependencies",
                                                                 "dependentSchemas",
                                                                 "$dynamicRef",
                                                                 "$recursiveRef"};
    if (kUnsupported.contains(name)) tree_.complain(value, fmt::format("{} is not supported", name));
    // Everything else is annotation: title, description, default, examples, $defs, unevaluatedProperties
    // (objects never get unevaluated ones), formats and keywords of others.
  }

  const std::vector<Id>& list_of_schemas(Id value) const {
    const Node& node = tree_.at(value);
    if (node.type != Type::kArray || node.items.empty()) {
      tree_.complain(value, "expected an array of at least one schema");
    }
    return node.items;
  }

  void read_type(Id value) {
    static const std::map<std::string, uint32_t, std::less<>> kTypes{
        {"null", Shape::kNull},     {"boolean", Shape::kBoolean}, {"integer", Shape::kInteger},
        {"number", Shape::kNumber}, {"string", Shape::kString},   {"array", Shape::kArray},
        {"object", Shape::kObject}};
    uint32_t types = 0;
    const auto add = [&](Id id) {
      const auto found = kTypes.find(tree_.at(id).text);
      if (tree_.at(id).type != Type::kString || found == kTypes.end()) {
        tree_.complain(id, "expected null, boolean, integer, number, string, array or object");
      }
      types |= found->second;
    };
    if (tree_.at(value).type == Type::kArray) {
      for (const Id item : tree_.at(value).items) add(item);
    } else {
      add(value);
    }
    shape_.typed = true;
    shape_.types &= types;
  }

  void intersect_values(const std::vector<Id>& values) {
    std::set<std::string> seen;
    std::vector<Id> kept;
    std::set<std::string> before;
    if (shape_.values) {
      for (const Id id : *shape_.values) before.insert(tree_.compact(id));
    }
    for (const Id id : values) {
      std::string text = tree_.compact(id);
      if (shape_.values && !before.contains(text)) continue;
      if (seen.insert(std::move(text)).second) kept.push_back(id);
    }
    shape_.values = std::move(kept);
  }

  void bound(Id value, bool exclusive, bool is_low) {
    kinds_ |= Shape::kNumber;
    if (!tree_.at(value).is_number()) tree_.complain(value, "expected a number");
    auto parsed = decimal_of(tree_.at(value));
    if (!parsed) tree_.complain(value, "this bound has too many digits");
    parsed->exclusive = exclusive;
    auto& known = is_low ? shape_.low : shape_.high;
    if (!known) {
      known = parsed;
      return;
    }
    const int order = compare_decimals(*parsed, *known);
    if (order == 0) {
      known->exclusive = known->exclusive || exclusive;
    } else if ((order > 0) == is_low) {
      known = parsed;
    }
  }

  int64_t count(Id value) {
    const Node& node = tree_.at(value);
    constexpr double kLargest = 1e15;
    if (!node.is_number() || node.number < 0 || node.number != std::floor(node.number)) {
      tree_.complain(value, "expected a whole number of 0 or more");
    }
    return int64_t(std::min(node.number, kLargest));
  }
  void at_least(Id value, Count& into, uint32_t kind) {
    kinds_ |= kind;
    const int64_t n = count(value);
    if (n > INT32_MAX) tree_.complain(value, fmt::format("expected at most {}", INT32_MAX));
    into.min = std::max(into.min, uint32_t(n));
  }
  void at_most(Id value, Count& into, uint32_t kind) {
    kinds_ |= kind;
    const int64_t n = count(value);
    into.max = into.max < 0 ? n : std::min(into.max, n);
  }

  void read_format(Id value) {
    const auto found = formats().find(tree_.at(value).text);
    if (tree_.at(value).type != Type::kString || found == formats().end()) return;
    kinds_ |= Shape::kString;
    if (shape_.format && *shape_.format != found->second) {
      tree_.complain(value, "two different formats at once are not supported");
    }
    shape_.format = found->second;
    shape_.format_place = value;
  }

  void read_items(Id schema, const std::string& name, Id value, ArraySide& side) {
    kinds_ |= Shape::kArray;
    const Node& node = tree_.at(value);
    if (name == "prefixItems" || (name == "items" && node.type == Type::kArray)) {
      if (node.type != Type::kArray) tree_.complain(value, "expected an array of schemas");
      side.prefix = node.items;
    } else if (name == "items") {
      side.items = value;
    } else {
      // additionalItems means something only beside the older form of items.
      const Id items = tree_.member(schema, "items");
      if (items != SchemaTree::kNone && tree_.at(items).type == Type::kArray) side.items = value;
    }
  }

  void read_properties(Id value, ObjectSide& side) {
    kinds_ |= Shape::kObject;
    const Node& node = tree_.at(value);
    if (node.type != Type::kObject) tree_.complain(value, "expected an object of schemas");
    shape_.has_properties = true;
    for (size_t i = 0; i < node.keys.size(); ++i) {
      side.properties.emplace_back(node.keys[i], node.items[i]);
      side.by_name.emplace(node.keys[i], node.items[i]);
    }
  }

  void find_groups(size_t index) {
    const Goal::Part part = shape_.expanded.parts[index];
    if (tree_.at(part.schema).type != Type::kObject) return;
    for (const auto& [name, bit] : {std::pair{"anyOf", 1u}, std::pair{"oneOf", 2u}}) {
      const Id list = tree_.member(part.schema, name);
      if (list != SchemaTree::kNone && !(part.decided & bit)) shape_.groups.push_back({index, bit, list});
    }
  }

  // A name must satisfy, of every schema with a say, the property or else the additional schema.
  void merge_properties() {
    bool open = false;
    Goal additional;
    for (const ObjectSide& side : objects_) {
      if (side.additional == SchemaTree::kNone) continue;
      if (is_false(side.additional)) {
        shape_.closed = true;
      } else {
        open = true;
        additional.add(side.additional);
      }
    }
    if (open && !shape_.closed) shape_.additional = additional;
    if (!open && !shape_.closed && !shape_.has_properties) shape_.additional = Goal{};
    std::set<std::string> seen;
    const auto add = [&](const std::string& name) {
      if (!seen.insert(name).second) return;
      Shape::Property property{name, {}, required_names_.contains(name)};
      bool allowed = true;
      for (const ObjectSide& side : objects_) {
        const auto found = side.by_name.find(name);
        if (found != side.by_name.end()) {
          property.goal.add(found->second);
        } else if (side.additional != SchemaTree::kNone) {
          property.goal.add(side.additional);
          allowed = allowed && !is_false(side.additional);
        }
      }
      if (allowed) {
        shape_.properties.push_back(std::move(property));
      } else if (property.required) {
        shape_.types &= ~uint32_t(Shape::kObject);  // asked for and forbidden
      }
    };
    for (const ObjectSide& side : objects_) {
      for (const auto& [name, id] : side.properties) add(name);
    }
    for (const std::string& name : required_) add(name);
  }

  void merge_items() {
    size_t longest = 0;
    for (const ArraySide& side : arrays_) {
      longest = std::max(longest, side.prefix.size());
      if (side.items == SchemaTree::kNone) continue;
      if (is_false(side.items)) {
        shape_.no_more_items = true;
        const auto n = int64_t(side.prefix.size());
        shape_.n_items.max = shape_.n_items.max < 0 ? n : std::min(shape_.n_items.max, n);
      } else {
        if (!shape_.items) shape_.items.emplace();
        shape_.items->add(side.items);
      }
    }
    for (size_t i = 0; i < longest; ++i) {
      Goal goal;
      for (const ArraySide& side : arrays_) {
        if (i < side.prefix.size()) {
          goal.add(side.prefix[i]);
        } else if (side.items != SchemaTree::kNone) {
          goal.add(side.items);
        }
      }
      shape_.prefix.push_back(std::move(goal));
    }
  }

  const SchemaTree& tree_;
  Shape shape_;
  uint32_t kinds_ = 0;  // types that keywords speak about
  std::vector<ObjectSide> objects_;
  std::vector<ArraySide> arrays_;
  std::vector<std::string> required_;
  std::set<std::string> required_names_;
};

}  // namespace

Shape collect_shape(const SchemaTree& tree, const Goal& goal) { return Collector(tree).run(goal); }

}  // namespace synod
