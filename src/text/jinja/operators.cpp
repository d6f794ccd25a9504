// What Python's operators do with template values.
#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/interpreter.h"

namespace synod::jinja {

Text Interpreter::text(const Value& value) {
  charge_bytes(value.weight());
  Text result = to_text(value);
  if (result.size() > limits_.max_output_bytes)
    error("a string of more than {} bytes", limits_.max_output_bytes);
  return result;
}

bool Interpreter::equals(const Value& a, const Value& b) {
  charge_bytes(std::min(a.weight(), b.weight()));
  return equal(a, b);
}

int Interpreter::order(const Value& a, const Value& b) {
  charge_bytes(std::min(a.weight(), b.weight()));
  if (a.is_undefined()) undefined_error(a);
  if (b.is_undefined()) undefined_error(b);
  const auto sign = compare(a, b);
  if (!sign) error("a {} and a {} have no order", a.type_name(), b.type_name());
  return *sign;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  charge_bytes(container.weight());
  if (const Text* text = container.text()) {
    if (item.is_undefined()) undefined_error(item);
    if (item.text() == nullptr) error("'in <string>' needs a string on its left, got a {}", item.type_name());
    return text->bytes().find(item.text()->bytes()) != std::string::npos;
  }
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& v) { return equals(v, item); });
  }
  if (const Dict* dict = container.dict()) return dict->find(item) != nullptr;
  if (container.is_undefined()) return false;
  error("a {} contains nothing: 'in' needs a string, list or dictionary on its right", container.type_name());
}

std::vector<Value> Interpreter::items(const Value& value) {
  std::vector<Value> result;
  if (const List* list = value.list()) {
    result = list->items;
  } else if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->items()) result.push_back(entry.first);
  } else if (const Text* text = value.text()) {
    charge(static_cast<int64_t>(text->size()));
    const std::vector<size_t> offsets = character_offsets(text->view());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) result.push_back(text->slice(offsets[i], offsets[i + 1]));
  } else if (!value.is_undefined()) {
    error("a {} cannot be iterated", value.type_name());
  }
  charge(static_cast<int64_t>(result.size()));
  return result;
}

int64_t Interpreter::length(const Value& value) {
  if (const Text* text = value.text()) {
    charge_bytes(text->size());
    return count_characters(text->view());
  }
  if (const List* list = value.list()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->size());
  if (value.is_undefined()) return 0;
  error("a {} has no length", value.type_name());
}

Value Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) undefined_error(value);
  if (name.starts_with('_')) {  // Python's inner parts, which the published sandbox hides
    return Value::undefined(fmt::format("access to the member '{}' is not allowed", name.substr(0, 40)));
  }
  if (Object* object = value.object()) {
    if (auto member = object->attribute(name)) return std::move(*member);
  } else if (has_method(value, name)) {
    return bound_method(value, name);
  } else if (const Dict* dict = value.dict()) {
    if (const Value* found = dict->find(name)) return *found;
  } else if (const List* list = value.list(); list != nullptr && list->is_group) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  return Value::undefined(fmt::format("a {} has no member '{}'", value.type_name(), name));
}

namespace {

// Python's index: from the end when negative. Empty when outside.
std::optional<size_t> position(int64_t index, int64_t length) {
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return static_cast<size_t>(index);
}

}  // namespace

Value Interpreter::item(const Value& value, const Value& key) {
  if (value.is_undefined()) undefined_error(value);
  if (const Dict* dict = value.dict()) {
    charge_bytes(key.weight());
    if (const Value* found = dict->find(key)) return *found;
  }
  if (const auto index = key.integer()) {
    if (const List* list = value.list()) {
      const auto at = position(*index, static_cast<int64_t>(list->items.size()));
      if (at) return list->items[*at];
    } else if (const Text* text = value.text()) {
      charge_bytes(text->size() * 8);
      const std::vector<size_t> offsets = character_offsets(text->view());
      const auto at = position(*index, static_cast<int64_t>(offsets.size()) - 1);
      if (at) return text->slice(offsets[*at], offsets[*at + 1]);
    }
    return Value::undefined(fmt::format("a {} has no item {}", value.type_name(), *index));
  }
  if (const Text* name = key.text()) return attribute(value, name->view());
  return Value::undefined(fmt::format("a {} has no item of type {}", value.type_name(), key.type_name()));
}

namespace {

struct Range {
  int64_t begin, end, step;
};

// Python's slice.indices.
Range slice_range(int64_t length, std::optional<int64_t> begin, std::optional<int64_t> end, int64_t step) {
  const int64_t low = step < 0 ? -1 : 0;
  const int64_t high = step < 0 ? length - 1 : length;
  const auto clamp = [&](std::optional<int64_t> at, int64_t fallback) {
    if (!at) return fallback;
    return *at < 0 ? std::max(*at + length, low) : std::min(*at, high);
  };
  return {clamp(begin, step < 0 ? high : low), clamp(end, step < 0 ? low : high), step};
}

}  // namespace

Value Interpreter::slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (value.is_undefined()) undefined_error(value);
  const auto bound = [&](const Value& v) -> std::optional<int64_t> {
    if (v.is_none()) return std::nullopt;
    const auto number = v.integer();
    if (!number) error("a slice needs whole numbers, got a {}", v.type_name());
    return std::clamp(*number, int64_t{-1} << 40, int64_t{1} << 40);
  };
  const int64_t stride = bound(step).value_or(1);
  if (stride == 0) error("the step of a slice cannot be 0");
  const Text* text = value.text();
  const List* list = value.list();
  if (text == nullptr && list == nullptr) {
    return Value::undefined(fmt::format("a {} cannot be sliced", value.type_name()));
  }
  const std::vector<size_t> offsets =
      text != nullptr ? character_offsets(text->view()) : std::vector<size_t>();
  if (text != nullptr) charge_bytes(text->size() * 8);
  const auto length = static_cast<int64_t>(text != nullptr ? offsets.size() - 1 : list->items.size());
  const Range range = slice_range(length, bound(begin), bound(end), stride);
  Text part;
  std::vector<Value> items;
  for (int64_t i = range.begin; stride > 0 ? i < range.end : i > range.end; i += stride) {
    const auto at = static_cast<size_t>(i);
    if (text != nullptr) {
      part.append(*text, offsets[at], offsets[at + 1]);
    } else {
      items.push_back(list->items[at]);
    }
  }
  return text != nullptr ? make(std::move(part)) : make_list(std::move(items), list->is_tuple);
}

namespace {

// Floor division and remainder of Python: the remainder has the sign of `b`.
int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_remainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::optional<int64_t> power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;
    if (i > 64 && (result == 0 || result == 1 || result == -1)) {  // it only changes sign from here
      return result == -1 && (exponent - i - 1) % 2 != 0 ? 1 : result;
    }
  }
  return result;
}

// Empty on overflow.
std::optional<Value> of_integers(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "//" || op == "%") {
    if (b == -1) {  // the smallest number has no opposite
      if (op == "//") overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      result = op == "//" ? floor_div(a, b) : a - floor_div(a, b) * b;
    }
  } else if (op == "/") {
    return Value(static_cast<double>(a) / static_cast<double>(b));
  } else {
    if (b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
    const auto value = power(a, b);
    if (!value) return std::nullopt;
    result = *value;
  }
  if (overflow) return std::nullopt;
  return Value(result);
}

Value of_floats(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  if (op == "%") return Value(float_remainder(a, b));
  return Value(std::pow(a, b));
}

}  // namespace

Value Interpreter::binary(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) undefined_error(a);
  if (op == "%" && a.text() != nullptr) {
    const List* list = b.list();
    const bool several = list != nullptr && list->is_tuple;
    return make(percent_format(*this, *a.text(), several ? list->items : std::vector<Value>{b}, b.dict()));
  }
  if (b.is_undefined()) undefined_error(b);
  if (const auto x = a.number(), y = b.number(); x && y) {
    if (*y == 0 && (op == "/" || op == "//" || op == "%")) error("division by zero");
    if (*x == 0 && *y < 0 && op == "**") error("division by zero");
    if (a.is_float() || b.is_float()) return of_floats(op, *x, *y);
    const auto result = of_integers(op, *a.integer(), *b.integer());
    if (!result) error("the result of {} {} {} does not fit 64 bits", *a.integer(), op, *b.integer());
    return *result;
  }
  if (op == "+") {
    if (a.text() != nullptr && b.text() != nullptr) {
      Text joined = *a.text();
      joined.append(*b.text());
      return make(std::move(joined));
    }
    const List *x = a.list(), *y = b.list();
    if (x != nullptr && y != nullptr && x->is_tuple == y->is_tuple) {
      std::vector<Value> joined = x->items;
      joined.insert(joined.end(), y->items.begin(), y->items.end());
      return make_list(std::move(joined), x->is_tuple);
    }
  }
  if (op == "*") {
    const Value& sequence = a.integer() ? b : a;
    const auto n = a.integer() ? a.integer() : b.integer();
    if (n && sequence.text() != nullptr) return make(repeated(*this, *sequence.text(), *n));
    if (n && sequence.list() != nullptr) {
      const auto size = static_cast<int64_t>(sequence.list()->items.size());
      int64_t total = 0;
      if (__builtin_mul_overflow(std::max<int64_t>(*n, 0), size, &total))
        total = std::numeric_limits<int32_t>::max();
      charge(total);
      std::vector<Value> repeated_items;
      for (int64_t i = 0; i < total; ++i)
        repeated_items.push_back(sequence.list()->items[static_cast<size_t>(i % size)]);
      return make_list(std::move(repeated_items), sequence.list()->is_tuple);
    }
  }
  error("a {} and a {} cannot be combined by {}", a.type_name(), b.type_name(), op);
}

Value Interpreter::negative(const Value& value) {
  if (value.is_undefined()) undefined_error(value);
  if (value.is_float()) return Value(-*value.number());
  const auto integer = value.integer();
  int64_t result = 0;
  if (!integer) error("a {} has no negative", value.type_name());
  if (__builtin_sub_overflow(int64_t{0}, *integer, &result))
    error("the negative of {} does not fit 64 bits", *integer);
  return Value(result);
}

Text repeated(Interpreter& interpreter, const Text& text, int64_t n) {
  if (n <= 0 || text.empty()) return {};
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  if (n > kMaxBytes / static_cast<int64_t>(text.size()))
    interpreter.error("a string repeated {} times is too long", n);
  interpreter.charge_bytes(text.size() * static_cast<size_t>(n));
  Text result;
  for (int64_t i = 0; i < n; ++i) result.append(text);
  return result;
}

}  // namespace synod::jinja
