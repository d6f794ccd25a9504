// Whether the alternatives of a oneOf exclude each other. Only what can be proved cheaply counts; the
// comparison follows required properties a few levels down.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "text/grammar/json_schema.h"

namespace synod {

using Id = SchemaTree::Id;
using Type = SchemaTree::Type;

namespace {

class Exclusion {
 public:
  explicit Exclusion(const SchemaTree& tree) : tree_(tree) {}

  // No value that is generated for `a` is valid for `b`, nor the other way round.
  bool disjoint(const Goal& a, const Goal& b, int depth) {
    constexpr int kMaxDepth = 6, kMaxComparisons = 2000;
    if (depth > kMaxDepth || ++n_comparisons_ > kMaxComparisons) return false;
    const Shape left = collect_shape(tree_, a), right = collect_shape(tree_, b);
    if (left.impossible || right.impossible) return true;
    if (!left.groups.empty())
      return all_alternatives(left, [&](const Goal& goal) { return disjoint(goal, b, depth + 1); });
    if (!right.groups.empty()) {
      return all_alternatives(right, [&](const Goal& goal) { return disjoint(a, goal, depth + 1); });
    }
    // What is generated for one, against what is valid for the other.
    const uint32_t common = (types_of(left, left.types) & types_of(right, right.declared_types)) |
                            (types_of(left, left.declared_types) & types_of(right, right.types));
    if (common == 0) return true;
    if (left.values && right.values) {
      std::set<std::string> texts;
      for (const Id id : *left.values) texts.insert(tree_.compact(id));
      return std::none_of(right.values->begin(), right.values->end(),
                          [&](Id id) { return texts.contains(tree_.compact(id)); });
    }
    if (left.values) return values_miss(left, right);
    if (right.values) return values_miss(right, left);
    if ((common & Shape::kNumber) && !ranges_miss(left, right)) return false;
    if ((common & Shape::kString) && !counts_miss(left.length, right.length)) return false;
    if ((common & Shape::kArray) && !counts_miss(left.n_items, right.n_items)) return false;
    if ((common & Shape::kObject) && !objects_miss(left, right, depth)) return false;
    return (common & (Shape::kNull | Shape::kBoolean)) == 0;
  }

 private:
  template <typename Test>
  bool all_alternatives(const Shape& shape, const Test& test) {
    const Shape::Group& group = shape.groups[0];
    for (const Id alternative : tree_.at(group.list).items) {
      Goal goal = shape.expanded;
      goal.parts[group.part].decided |= group.bit;
      goal.add(alternative, 0, goal.parts[group.part].schema);
      if (!test(goal)) return false;
    }
    return true;
  }

  uint32_t types_of(const Shape& shape, uint32_t of) const {
    if (!shape.values) return of;
    uint32_t types = 0;
    for (const Id id : *shape.values) types |= type_of(id);
    return types & of;
  }

  uint32_t type_of(Id id) const {
    switch (tree_.at(id).type) {
      case Type::kNull:
        return Shape::kNull;
      case Type::kBoolean:
        return Shape::kBoolean;
      case Type::kString:
        return Shape::kString;
      case Type::kArray:
        return Shape::kArray;
      case Type::kObject:
        return Shape::kObject;
      default:
        return tree_.compact(id).find_first_of(".e") == std::string::npos ? Shape::kInteger
                                                                          : Shape::kFraction;
    }
  }

  // Every listed value has a type that the other shape lacks, or is a number outside of its bounds.
  bool values_miss(const Shape& listed, const Shape& other) const {
    return std::all_of(listed.values->begin(), listed.values->end(), [&](Id id) {
      const uint32_t type = type_of(id);
      if (!(other.declared_types & type)) return true;
      return (type & Shape::kNumber) && !number_fits(other, tree_.at(id));
    });
  }

  static bool below(const std::optional<DecimalBound>& high, const std::optional<DecimalBound>& low) {
    if (!high || !low) return false;
    const int order = compare_decimals(*high, *low);
    return order < 0 || (order == 0 && (high->exclusive || low->exclusive));
  }
  static bool ranges_miss(const Shape& a, const Shape& b) {
    return below(a.high, b.low) || below(b.high, a.low);
  }

  static bool counts_miss(const Count& a, const Count& b) {
    return (a.max >= 0 && a.max < int64_t(b.min)) || (b.max >= 0 && b.max < int64_t(a.min));
  }

  bool objects_miss(const Shape& a, const Shape& b, int depth) {
    for (const Shape::Property& property : a.properties) {
      const Shape::Property* other = b.property(property.name);
      if (property.required && other && other->required && disjoint(property.goal, other->goal, depth + 1)) {
        return true;
      }
    }
    // An object made for one lacks a property that the other needs, or has one that the other forbids.
    const auto lacks = [](const Shape& made, const Shape& needs) {
      return !made.additional &&
             std::any_of(needs.properties.begin(), needs.properties.end(),
                         [&](const Shape::Property& p) { return p.required && !made.property(p.name); });
    };
    const auto forbids = [](const Shape& strict, const Shape& made) {
      return strict.closed &&
             std::any_of(made.properties.begin(), made.properties.end(),
                         [&](const Shape::Property& p) { return p.required && !strict.property(p.name); });
    };
    return (lacks(a, b) || forbids(b, a)) && (lacks(b, a) || forbids(a, b));
  }

  const SchemaTree& tree_;
  int n_comparisons_ = 0;
};

}  // namespace

void check_exclusive(const SchemaTree& tree, const Shape& shape, const Shape::Group& group) {
  const auto& alternatives = tree.at(group.list).items;
  Exclusion exclusion(tree);
  std::vector<Goal> goals;
  for (const Id alternative : alternatives) {
    Goal goal = shape.expanded;
    goal.parts[group.part].decided |= group.bit;
    goal.add(alternative, 0, goal.parts[group.part].schema);
    goals.push_back(std::move(goal));
  }
  for (size_t i = 0; i < goals.size(); ++i) {
    for (size_t j = i + 1; j < goals.size(); ++j) {
      if (exclusion.disjoint(goals[i], goals[j], 0)) continue;
      tree.complain(group.list,
                    fmt::format("alternatives {} and {} may match the same value, which oneOf forbids; "
                                "use anyOf, or give them different required constants",
                                i, j));
    }
  }
}

}  // namespace synod
