#include "text/jinja/value.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace synod::jinja {
namespace {

constexpr size_t kNodeWeight = 16;

// Equal keys have equal text: 1, 1.0 and true are one key, as in Python.
std::optional<std::string> key_text(const Value& key) {
  if (const Text* text = key.text()) return "s" + text->bytes();
  if (key.is_none()) return "n";
  if (const auto number = key.number()) {
    if (const auto integer = key.integer()) return fmt::format("i{}", *integer);
    if (*number == std::floor(*number) && std::abs(*number) < 9e18) {
      return fmt::format("i{}", static_cast<int64_t>(*number));
    }
    return fmt::format("f{}", *number);
  }
  const List* list = key.list();
  if (list == nullptr || !list->is_tuple) return std::nullopt;
  std::string text = "t";
  for (const Value& item : list->items) {
    const auto part = key_text(item);
    if (!part) return std::nullopt;
    text += fmt::format("{}:{}", part->size(), *part);
  }
  return text;
}

bool is_printable(char32_t c) {
  if (c < 0x20 || c == 0x7F) return false;
  if (c < 0x7F) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void append_repr(Text& out, const Text& text) {
  const bool has_single = text.bytes().find('\'') != std::string::npos;
  const bool has_double = text.bytes().find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.append(std::string_view(&quote, 1), Origin::kMarkup);
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text.view(), at);
    const Origin origin = text.origin_at(at);
    std::string escaped;
    if (c.status != Utf8Status::kValid) {
      escaped = text.bytes().substr(at, c.length);
    } else if (c.value == static_cast<unsigned char>(quote) || c.value == '\\') {
      escaped = {'\\', static_cast<char>(c.value)};
    } else if (c.value == '\n') {
      escaped = "\\n";
    } else if (c.value == '\r') {
      escaped = "\\r";
    } else if (c.value == '\t') {
      escaped = "\\t";
    } else if (is_printable(c.value)) {
      escaped = text.bytes().substr(at, c.length);
    } else if (c.value < 0x100) {
      escaped = fmt::format("\\x{:02x}", static_cast<uint32_t>(c.value));
    } else if (c.value < 0x10000) {
      escaped = fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
    } else {
      escaped = fmt::format("\\U{:08x}", static_cast<uint32_t>(c.value));
    }
    out.append(escaped, origin);
    at += c.length;
  }
  out.append(std::string_view(&quote, 1), Origin::kMarkup);
}

void append_value(Text& out, const Value& value, bool as_repr) {
  const auto markup = [&](std::string_view text) { out.append(text, Origin::kMarkup); };
  if (const Text* text = value.text()) {
    if (as_repr) {
      append_repr(out, *text);
    } else {
      out.append(*text);
    }
  } else if (const bool* flag = value.get_if<bool>()) {
    markup(*flag ? "True" : "False");
  } else if (value.is_none()) {
    markup("None");
  } else if (const auto* integer = value.get_if<int64_t>()) {
    markup(std::to_string(*integer));
  } else if (const auto* number = value.get_if<double>()) {
    markup(float_repr(*number));
  } else if (const List* list = value.list()) {
    markup(list->is_tuple ? "(" : "[");
    for (size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) markup(", ");
      append_value(out, list->items[i], true);
    }
    if (list->is_tuple && list->items.size() == 1) markup(",");
    markup(list->is_tuple ? ")" : "]");
  } else if (const Dict* dict = value.dict()) {
    markup("{");
    bool first = true;
    for (const auto& [key, item] : dict->items()) {
      if (!first) markup(", ");
      first = false;
      append_value(out, key, true);
      markup(": ");
      append_value(out, item, true);
    }
    markup("}");
  } else if (const Object* object = value.object()) {
    markup("<" + object->type_name() + ">");
  } else if (as_repr) {
    markup("Undefined");
  }
}

}  // namespace

Value::Value(List list) {
  list.weight = kNodeWeight;
  for (const Value& item : list.items) {
    list.depth = std::max(list.depth, item.depth());
    list.weight += item.weight();
  }
  ++list.depth;
  data_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  dict.weight = kNodeWeight;
  for (const auto& [key, item] : dict.items()) {
    dict.depth = std::max({dict.depth, key.depth(), item.depth()});
    dict.weight += key.weight() + item.weight();
  }
  ++dict.depth;
  data_ = std::make_shared<const Dict>(std::move(dict));
}

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

const Text* Value::text() const {
  const auto* pointer = get_if<std::shared_ptr<const Text>>();
  return pointer != nullptr ? pointer->get() : nullptr;
}

const List* Value::list() const {
  const auto* pointer = get_if<std::shared_ptr<const List>>();
  return pointer != nullptr ? pointer->get() : nullptr;
}

const Dict* Value::dict() const {
  const auto* pointer = get_if<std::shared_ptr<const Dict>>();
  return pointer != nullptr ? pointer->get() : nullptr;
}

Object* Value::object() const {
  const auto* pointer = get_if<std::shared_ptr<Object>>();
  return pointer != nullptr ? pointer->get() : nullptr;
}

std::optional<int64_t> Value::integer() const {
  if (const auto* value = get_if<int64_t>()) return *value;
  if (const bool* value = get_if<bool>()) return *value ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto value = integer()) return static_cast<double>(*value);
  if (const auto* value = get_if<double>()) return *value;
  return std::nullopt;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (const auto n = number()) return *n != 0;
  if (const Text* t = text()) return !t->empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return d->size() > 0;
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (const List* l = list()) return l->is_tuple ? "tuple" : "list";
  if (dict() != nullptr) return "dict";
  return object()->type_name();
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth;
  return 0;
}

size_t Value::weight() const {
  if (const Text* t = text()) return kNodeWeight + t->size();
  if (const List* l = list()) return l->weight;
  if (const Dict* d = dict()) return d->weight;
  return kNodeWeight;
}

bool Dict::set(const Value& key, Value value) {
  const auto text = key_text(key);
  if (!text) return false;
  const auto [at, is_new] = index_.emplace(*text, items_.size());
  if (is_new) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[at->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::find_key(const std::string& key) const {
  const auto at = index_.find(key);
  return at == index_.end() ? nullptr : &items_[at->second].second;
}

const Value* Dict::find(const Value& key) const {
  const auto text = key_text(key);
  return text ? find_key(*text) : nullptr;
}

const Value* Dict::find(std::string_view key) const { return find_key("s" + std::string(key)); }

bool equal(const Value& a, const Value& b) {
  if (const auto x = a.number(), y = b.number(); x && y) {
    const auto i = a.integer(), j = b.integer();
    return i && j ? *i == *j : *x == *y;
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes() == b.text()->bytes();
  if (a.is_none() || a.is_undefined())
    return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    return x->is_tuple == y->is_tuple &&
           std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), equal);
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    if (x->size() != y->size()) return false;
    return std::all_of(x->items().begin(), x->items().end(), [&](const auto& item) {
      const Value* other = y->find(item.first);
      return other != nullptr && equal(item.second, *other);
    });
  }
  return a.object() != nullptr && a.object() == b.object();
}

std::optional<int> compare(const Value& a, const Value& b) {
  if (const auto i = a.integer(), j = b.integer(); i && j) return *i < *j ? -1 : *i > *j;
  if (const auto x = a.number(), y = b.number(); x && y) return *x < *y ? -1 : *x > *y;
  // UTF-8 sorts as its code points do.
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes().compare(b.text()->bytes());
  const List *x = a.list(), *y = b.list();
  if (x == nullptr || y == nullptr || x->is_tuple != y->is_tuple) return std::nullopt;
  for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
    if (equal(x->items[i], y->items[i])) continue;
    return compare(x->items[i], y->items[i]);
  }
  return x->items.size() < y->items.size() ? -1 : x->items.size() > y->items.size();
}

Text to_text(const Value& value) {
  if (const Text* text = value.text()) return *text;
  Text out;
  append_value(out, value, false);
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that read back as the same number; Python writes an exponent below 1e-4 and from
  // 1e16.
  const double size = std::abs(value);
  const bool scientific = size != 0 && (size < 1e-4 || size >= 1e16);
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer.data(), end.ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace synod::jinja
