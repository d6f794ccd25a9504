// tojson as chat templates call it (Python's json.dumps with ensure_ascii off), and values from JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace synod::jinja {
namespace {

constexpr int kMaxJsonDepth = 256;

Value converted(const nlohmann::ordered_json& json, Origin origin, int depth) {
  if (depth > kMaxJsonDepth) fail(Error::Kind::kUsage, "JSON nested more than {} deep", kMaxJsonDepth);
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return None{};
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number <= static_cast<uint64_t>(INT64_MAX)) return Value(static_cast<int64_t>(number));
      return Value(static_cast<double>(number));
    }
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return Text(json.get<std::string>(), origin);
    case nlohmann::ordered_json::value_t::array: {
      List list;
      for (const auto& item : json) list.items.push_back(converted(item, origin, depth + 1));
      return list;
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.set(Text(key, origin), converted(item, origin, depth + 1));
      }
      return dict;
    }
    default:
      fail(Error::Kind::kUsage, "binary values have no place in JSON");
  }
}

class Writer {
 public:
  Writer(Interpreter& interpreter, const JsonStyle& style) : interpreter_(interpreter), style_(style) {}

  void value(const Value& v, int64_t level) {
    interpreter_.charge(1);
    if (const Text* text = v.text()) {
      string(*text);
    } else if (v.is_none()) {
      out.append("null", Origin::kMarkup);
    } else if (v.is_bool()) {
      out.append(v.truth() ? "true" : "false", Origin::kMarkup);
    } else if (v.is_int()) {
      out.append(std::to_string(*v.integer()), Origin::kMarkup);
    } else if (v.is_float()) {
      std::string number = float_repr(*v.number());
      if (number == "inf" || number == "-inf") number.replace(number.find('i'), 3, "Infinity");
      if (number == "nan") number = "NaN";
      out.append(number, Origin::kMarkup);
    } else if (const List* list = v.list()) {
      container('[', ']', list->items.size(), level, [&](size_t i) { value(list->items[i], level + 1); });
    } else if (const Dict* dict = v.dict()) {
      object(*dict, level);
    } else {
      interpreter_.error("tojson: a {} cannot be written as JSON", v.type_name());
    }
  }

  Text out;

 private:
  void object(const Dict& dict, int64_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.items()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return interpreter_.order(a->first, b->first) < 0;
      });
    }
    container('{', '}', entries.size(), level, [&](size_t i) {
      key(entries[i]->first);
      out.append(style_.key_separator, Origin::kMarkup);
      value(entries[i]->second, level + 1);
    });
  }

  // Python writes numbers, booleans and None as keys by their JSON text.
  void key(const Value& key) {
    if (key.text() != nullptr) {
      string(*key.text());
      return;
    }
    if (!key.is_number() && !key.is_none())
      interpreter_.error("tojson: a {} cannot be a key", key.type_name());
    out.append("\"", Origin::kMarkup);
    value(key, 0);
    out.append("\"", Origin::kMarkup);
  }

  template <typename Item>
  void container(char open, char close, size_t n, int64_t level, Item&& item) {
    out.append(std::string_view(&open, 1), Origin::kMarkup);
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) out.append(style_.item_separator, Origin::kMarkup);
      new_line(level + 1);
      item(i);
    }
    if (n > 0) new_line(level);
    out.append(std::string_view(&close, 1), Origin::kMarkup);
  }

  void new_line(int64_t level) {
    if (style_.indent < 0) return;
    const auto blanks = static_cast<size_t>(style_.indent * level);
    interpreter_.charge_bytes(blanks);
    out.append("\n" + std::string(blanks, ' '), Origin::kMarkup);
  }

  void string(const Text& text) {
    out.append("\"", Origin::kMarkup);
    interpreter_.charge_bytes(text.size());
    for (const Text::Run& run : text.runs()) {
      std::string escaped;
      escape(text.view().substr(begin_of(text, run), run.end - begin_of(text, run)), escaped);
      out.append(escaped, run.origin);
    }
    out.append("\"", Origin::kMarkup);
  }

  static size_t begin_of(const Text& text, const Text::Run& run) {
    const size_t i = static_cast<size_t>(&run - text.runs().data());
    return i == 0 ? 0 : text.runs()[i - 1].end;
  }

  void escape(std::string_view bytes, std::string& escaped) const {
    for (size_t at = 0; at < bytes.size();) {
      const Utf8Char c = decode_utf8(bytes, at);
      const std::string_view raw = bytes.substr(at, c.length);
      at += c.length;
      if (c.status != Utf8Status::kValid) {
        escaped += raw;
        continue;
      }
      switch (c.value) {
        case '"':
          escaped += "\\\"";
          continue;
        case '\\':
          escaped += "\\\\";
          continue;
        case '\n':
          escaped += "\\n";
          continue;
        case '\r':
          escaped += "\\r";
          continue;
        case '\t':
          escaped += "\\t";
          continue;
        case '\f':
          escaped += "\\f";
          continue;
        case '\b':
          escaped += "\\b";
          continue;
        default:
          break;
      }
      const auto unit = [&](uint32_t u) { escaped += fmt::format("\\u{:04x}", u); };
      if (c.value < 0x20 || (style_.ascii && c.value == 0x7F)) {
        unit(c.value);
      } else if (c.value < 0x80 || !style_.ascii) {
        escaped += raw;
      } else if (c.value < 0x10000) {
        unit(c.value);
      } else {
        unit(0xD800 + ((c.value - 0x10000) >> 10));
        unit(0xDC00 + ((c.value - 0x10000) & 0x3FF));
      }
    }
  }

  Interpreter& interpreter_;
  const JsonStyle& style_;
};

}  // namespace

Value from_json(const nlohmann::ordered_json& json, Origin origin) { return converted(json, origin, 0); }

Text to_json(Interpreter& interpreter, const Value& value, const JsonStyle& style) {
  interpreter.charge_bytes(value.weight());
  Writer writer(interpreter, style);
  writer.value(value, 0);
  return std::move(writer.out);
}

}  // namespace synod::jinja
