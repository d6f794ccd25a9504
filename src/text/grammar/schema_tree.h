// A JSON document as numbered nodes that know their pointer. simdjson parses; this keeps the order of keys,
// gives every node an identity (for recursion) and finds references.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace synod {

class SchemaTree {
 public:
  enum class Type : uint8_t { kNull, kBoolean, kInteger, kUnsigned, kDouble, kString, kArray, kObject };
  using Id = uint32_t;
  static constexpr Id kNone = UINT32_MAX;

  struct Node {
    Type type = Type::kNull;
    bool boolean = false;
    int64_t integer = 0;            // kInteger
    uint64_t unsigned_value = 0;    // kUnsigned: above INT64_MAX
    double number = 0;              // every number
    std::string text;               // kString
    std::vector<Id> items;          // kArray, kObject
    std::vector<std::string> keys;  // kObject
    Id parent = kNone;
    uint32_t index = 0;  // in the parent
    bool is_number() const {
      return type == Type::kInteger || type == Type::kUnsigned || type == Type::kDouble;
    }
  };

  // Throws kUsage: not JSON, nested deeper than `max_depth`, a key given twice.
  SchemaTree(std::string_view json, int max_depth);

  const Node& at(Id id) const { return nodes_[id]; }
  Id member(Id object, std::string_view key) const;  // kNone when absent
  std::string pointer(Id id) const;                  // "#/properties/a"
  Id resolve(Id reference) const;    // the target of the $ref string at `reference`; throws kUsage
  std::string compact(Id id) const;  // JSON without spaces; equal values give equal texts

  [[noreturn]] void complain(Id id, std::string_view what) const;

 private:
  friend struct SchemaReader;
  std::vector<Node> nodes_;
};

}  // namespace synod
