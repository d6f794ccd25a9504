// Values of templates: Python's, as far as templates see them. Lists and dictionaries never change once made
// (the published environment is the immutable sandbox), so values share them freely and no cycle can arise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/text.h"

namespace synod::jinja {

class Interpreter;
class Object;
class Value;
struct List;
class Dict;
struct Arguments;

struct None {};
// A name or member that is not there; using it other than by printing, testing or iterating is an error.
struct Undefined {
  std::shared_ptr<const std::string> what;  // for the message, may be null
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  explicit Value(bool value) : data_(value) {}
  explicit Value(int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(List list);
  Value(Dict dict);
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  static Value undefined(std::string what);
  static Value markup(std::string text) { return Text(std::move(text), Origin::kMarkup); }

  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return get_if<Undefined>() != nullptr; }
  bool is_none() const { return get_if<None>() != nullptr; }
  bool is_bool() const { return get_if<bool>() != nullptr; }
  bool is_int() const { return get_if<int64_t>() != nullptr; }  // not a boolean
  bool is_float() const { return get_if<double>() != nullptr; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  // Null for other types.
  const Text* text() const;
  const List* list() const;  // lists and tuples
  const Dict* dict() const;
  Object* object() const;
  bool is_string() const { return text() != nullptr; }
  // Booleans count as 0 and 1.
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;

  bool truth() const;
  std::string type_name() const;  // as in messages: "str", "list", ...
  int depth() const;              // of nesting: 0 for scalars
  // About how many bytes it prints as, members that are shared counted each time: the cost of whatever walks
  // it.
  size_t weight() const;

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>
      data_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  bool is_group = false;  // of groupby: its members have the names "grouper" and "list"
  int depth = 0;          // like `weight`, set by Value's constructor
  size_t weight = 0;
};

// Insertion-ordered. Keys are strings, numbers, booleans, None or tuples of them.
class Dict {
 public:
  // Replaces the value of a known key. False when `key` cannot be one.
  bool set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  int depth = 0;  // like `weight`, set by Value's constructor
  size_t weight = 0;

 private:
  const Value* find_key(const std::string& key) const;
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> index_;  // by type and text of the key
};

// Anything else: functions, namespaces, loops. Owned by the interpreter or by values; never by each other in
// a ring.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::optional<Value> attribute(std::string_view) { return std::nullopt; }
  virtual bool set_attribute(std::string_view, Value) { return false; }
  virtual bool callable() const { return false; }
  virtual Value call(Interpreter& interpreter, Arguments& arguments);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Python's ==.
bool equal(const Value& a, const Value& b);
// Negative, zero or positive for numbers, strings and lists; empty where Python has no order.
std::optional<int> compare(const Value& a, const Value& b);
// str() and repr(). Origins are kept where a string is printed as such.
Text to_text(const Value& value);
std::string float_repr(double value);

}  // namespace synod::jinja
