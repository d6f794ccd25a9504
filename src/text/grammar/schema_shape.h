// What a conjunction of schemas asks of a value, collected from all its parts: references followed, allOf
// merged. Alternatives (anyOf, oneOf) are not part of a shape: the compiler picks one each and asks again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/grammar/json_terms.h"
#include "text/grammar/schema_tree.h"

namespace synod {

// Schemas that must all hold, in the order in which they were met. `decided` marks those whose anyOf (1) or
// oneOf (2) has been replaced by one of its alternatives, which is then part of the goal.
struct Goal {
  struct Part {
    SchemaTree::Id schema;
    uint32_t decided = 0;
    SchemaTree::Id origin = SchemaTree::kNone;  // whose alternative it is
  };
  std::vector<Part> parts;
  void add(SchemaTree::Id schema, uint32_t decided = 0, SchemaTree::Id origin = SchemaTree::kNone);
  std::vector<uint32_t> key() const;
};

struct Shape {
  enum : uint32_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,
    kString = 16,
    kArray = 32,
    kObject = 64,
    kNumber = kInteger | kFraction,
    kAll = 127
  };
  struct Property {
    std::string name;
    Goal goal;
    bool required = false;
  };

  uint32_t types = kAll;           // without `type`, the types that the other keywords speak about
  uint32_t declared_types = kAll;  // without that narrowing: what a validator accepts
  bool typed = false;              // `type` was given
  bool impossible = false;         // `false` was part of it
  std::optional<std::vector<SchemaTree::Id>> values;  // enum, const: what is left after intersecting

  std::optional<DecimalBound> low, high;
  Count length;                          // of a string
  std::vector<SchemaTree::Id> patterns;  // `pattern` strings
  std::optional<std::string> format;     // a known one, as a pattern
  SchemaTree::Id format_place = SchemaTree::kNone;

  std::vector<Goal> prefix;    // prefixItems
  std::optional<Goal> items;   // of the rest; absent: any
  bool no_more_items = false;  // `items: false`
  Count n_items;

  std::vector<Property> properties;  // in the client's order
  std::optional<Goal> additional;    // explicit; an empty goal takes anything
  bool closed = false;               // `additionalProperties: false` somewhere
  bool has_properties = false;
  Goal names;  // propertyNames
  Count n_properties;

  // Alternatives left to choose.
  struct Group {
    size_t part;   // of the expanded goal
    uint32_t bit;  // 1 anyOf, 2 oneOf
    SchemaTree::Id list;
  };
  std::vector<Group> groups;
  Goal expanded;

  const Property* property(const std::string& name) const;
};

// Decimal digits of a number node as written shortest; nothing when there are too many.
std::optional<DecimalBound> decimal_of(const SchemaTree::Node& node);
int compare_decimals(const DecimalBound& a, const DecimalBound& b);
bool number_fits(const Shape& shape, const SchemaTree::Node& node);  // within the shape's bounds

// Checks every keyword of every part (kUsage, with the pointer) and collects.
Shape collect_shape(const SchemaTree& tree, const Goal& goal);

}  // namespace synod
