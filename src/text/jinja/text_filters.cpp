// Filters on strings and numbers, and default.
#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/filters.h"
#include "text/utf8.h"

namespace synod::jinja {
namespace {

Value filter_abs(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "abs", arguments, {});
  if (value.is_float()) return Value(std::abs(*value.number()));
  if (!value.integer()) in.error("abs: expected a number, got a {}", value.type_name());
  return *value.integer() < 0 ? in.binary("-", Value(int64_t{0}), value) : Value(*value.integer());
}

template <Case kStyle>
Value filter_case(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "filter", arguments, {});
  return in.make(with_case(in.text(value), kStyle));
}

// Capitals after white space and opening brackets, not after every non-letter.
Value filter_title(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "title", arguments, {});
  const Text text = in.text(value);
  Text result;
  size_t begin = 0;
  const auto put = [&](size_t end) {
    if (end > begin) result.append(with_case(text.slice(begin, end), Case::kCapital));
    begin = end;
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text.view(), at);
    const bool breaks =
        c.status == Utf8Status::kValid &&
        (is_space(c.value) || std::u32string_view(U"-({[<").find(c.value) != std::u32string_view::npos);
    if (breaks) put(at);
    at += c.length;
    if (breaks) put(at);
  }
  put(text.size());
  return in.make(std::move(result));
}

Value filter_center(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "center", arguments, {"width"});
  Arguments forwarded;
  forwarded.positional.emplace_back(parameters.integer(0, 80));
  return call_method(in, in.text(value), "center", forwarded);
}

Value filter_default(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "default", arguments, {"default_value", "boolean"});
  const bool use = parameters.flag(1, false) ? !value.truth() : value.is_undefined();
  if (!use) return value;
  return parameters.find(0) != nullptr ? *parameters.find(0) : Value::markup("");
}

Value filter_escape(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "escape", arguments, {});
  const Text text = in.text(value);
  Text result;
  for (size_t at = 0; at < text.size(); ++at) {
    const Origin origin = text.origin_at(at);
    switch (text.bytes()[at]) {
      case '&':
        result.append("&amp;", origin);
        break;
      case '<':
        result.append("&lt;", origin);
        break;
      case '>':
        result.append("&gt;", origin);
        break;
      case '\'':
        result.append("&#39;", origin);
        break;
      case '"':
        result.append("&#34;", origin);
        break;
      default:
        result.append(text, at, at + 1);
    }
  }
  return in.make(std::move(result));
}

// Python's int() and float() on text, as far as templates need them.
std::string number_text(const Value& value) {
  std::string text;
  if (value.text() != nullptr) text = strip(*value.text(), nullptr, true, true).bytes();
  std::erase(text, '_');
  if (text.starts_with('+')) text.erase(0, 1);
  return text;
}

Value filter_int(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "int", arguments, {"default", "base"});
  const Value fallback = parameters.find(0) != nullptr ? *parameters.find(0) : Value(int64_t{0});
  if (const auto integer = value.integer()) return Value(*integer);
  std::string text = number_text(value);
  int64_t base = parameters.integer(1, 10);
  if (base < 2 || base > 36) in.error("int: the base must be 2 to 36, got {}", base);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.erase(0, 2);
  if (base == 8 && (text.starts_with("0o") || text.starts_with("0O"))) text.erase(0, 2);
  if (base == 2 && (text.starts_with("0b") || text.starts_with("0B"))) text.erase(0, 2);
  int64_t integer = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, integer, static_cast<int>(base));
  if (!text.empty() && parsed.ec == std::errc() && parsed.ptr == end) return Value(integer);
  double number = value.is_float() ? *value.number() : 0;
  if (!value.is_float()) {
    const auto real = std::from_chars(text.data(), end, number);
    if (text.empty() || real.ec != std::errc() || real.ptr != end) return fallback;
  }
  if (!std::isfinite(number) || std::abs(number) > 9e18) return fallback;
  return Value(static_cast<int64_t>(number));
}

Value filter_float(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "float", arguments, {"default"});
  if (const auto number = value.number()) return Value(*number);
  const std::string text = number_text(value);
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (!text.empty() && parsed.ec == std::errc() && parsed.ptr == end) return Value(number);
  return parameters.find(0) != nullptr ? *parameters.find(0) : Value(0.0);
}

Value filter_format(Interpreter& in, const Value& value, Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty())
    in.error("format: positional or named, not both");
  Dict named;
  for (const auto& [key, argument] : arguments.named) named.set(Value::markup(key), argument);
  return in.make(
      percent_format(in, in.text(value), arguments.positional, arguments.named.empty() ? nullptr : &named));
}

Value filter_indent(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "indent", arguments, {"width", "first", "blank"});
  Text indent;
  if (parameters.find(0) != nullptr && parameters.find(0)->is_string()) {
    indent = *parameters.find(0)->text();
  } else {
    indent = repeated(in, Text(" ", Origin::kMarkup), parameters.integer(0, 4));
  }
  const bool blank = parameters.flag(2, false);
  Text text = in.text(value);
  text.append("\n", Origin::kMarkup);
  Text result;
  if (parameters.flag(1, false)) result.append(indent);
  bool first = true;
  for (const Text& line : split_lines(text, false)) {
    in.charge_bytes(indent.size() + line.size() + 64);
    if (!first) {
      result.append("\n", Origin::kMarkup);
      if (blank || !line.empty()) result.append(indent);
    }
    first = false;
    result.append(line);
  }
  return in.make(std::move(result));
}

Value filter_replace(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "replace", arguments, {"old", "new", "count"});
  parameters.need(0);
  parameters.need(1);
  return in.make(
      replace(in, in.text(value), parameters.text(0, ""), parameters.text(1, ""), parameters.integer(2, -1)));
}

double rounded(double value, int64_t precision) {
  if (precision >= 0) {  // as Python: correctly, to even only when the stored number lies exactly between
    if (precision > 300) return value;
    return std::strtod(fmt::format("{:.{}f}", value, precision).c_str(), nullptr);
  }
  const double unit = std::pow(10.0, static_cast<double>(std::min<int64_t>(-precision, 308)));
  return std::nearbyint(value / unit) * unit;
}

Value filter_round(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "round", arguments, {"precision", "method"});
  const auto number = value.number();
  if (!number) in.error("round: expected a number, got a {}", value.type_name());
  const int64_t precision = parameters.integer(0, 0);
  const std::string method = parameters.text(1, "common").bytes();
  if (method == "common") {
    if (value.integer() && precision >= 0) return Value(*value.integer());
    const double result = rounded(*number, precision);
    return value.integer() ? Value(static_cast<int64_t>(result)) : Value(result);
  }
  if (method != "ceil" && method != "floor")
    in.error("round: method: expected common, ceil or floor, got {}", method);
  const double unit = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(precision, -300, 300)));
  return Value((method == "ceil" ? std::ceil(*number * unit) : std::floor(*number * unit)) / unit);
}

Value filter_string(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "string", arguments, {});
  return in.make(in.text(value));
}

Value filter_trim(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "trim", arguments, {"chars"});
  const Value* chars = parameters.find(0);
  const Text set = chars != nullptr && !chars->is_none() ? in.text(*chars) : Text();
  return in.make(strip(in.text(value), chars != nullptr && !chars->is_none() ? &set : nullptr, true, true));
}

Value filter_truncate(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Text text = in.text(value);
  const Text end = parameters.text(2, "...");
  const int64_t length = parameters.integer(0, 255);
  const std::vector<size_t> offsets = character_offsets(text.view());
  const auto n = static_cast<int64_t>(offsets.size()) - 1;
  const int64_t end_length = count_characters(end.view());
  if (length < end_length) in.error("truncate: the length {} is less than that of the end", length);
  const int64_t leeway = parameters.integer(3, 5);
  if (leeway < 0) in.error("truncate: the leeway cannot be negative");
  if (n <= length || n - length <= leeway) return text;
  Text result = text.slice(0, offsets[static_cast<size_t>(length - end_length)]);
  if (!parameters.flag(1, false)) {
    const size_t blank = result.bytes().rfind(' ');
    if (blank != std::string::npos) result = result.slice(0, blank);
  }
  result.append(end);
  return in.make(std::move(result));
}

Value filter_urlencode(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "urlencode", arguments, {});
  const Text text = in.text(value);
  Text result;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text.bytes()[at];
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    result.append(plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c)),
                  text.origin_at(at));
  }
  return in.make(std::move(result));
}

Value filter_tojson(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "tojson", arguments, {"indent", "ensure_ascii", "separators", "sort_keys"});
  // Hugging Face's signature begins with ensure_ascii, Jinja's with indent: a boolean tells which is meant.
  JsonStyle style;
  const Value* first = parameters.find(0);
  const Value* second = parameters.find(1);
  if (first != nullptr && first->is_bool()) std::swap(first, second);
  if (first != nullptr && !first->is_none()) {
    if (const Text* text = first->text()) {
      style.indent = count_characters(text->view());
    } else {
      if (!first->integer()) in.error("tojson: indent: expected a number, got a {}", first->type_name());
      style.indent = std::clamp<int64_t>(*first->integer(), 0, 64);
    }
    style.indent = std::min<int64_t>(style.indent, 64);
    style.item_separator = ",";
  }
  style.ascii = second != nullptr && second->truth();
  style.sort_keys = parameters.flag(3, false);
  if (parameters.find(2) != nullptr && !parameters.find(2)->is_none()) {
    const std::vector<Value> parts = in.items(*parameters.find(2));
    if (parts.size() != 2) in.error("tojson: separators: expected two strings");
    style.item_separator = in.text(parts[0]).bytes();
    style.key_separator = in.text(parts[1]).bytes();
  }
  return in.make(to_json(in, value, style));
}

Value filter_wordcount(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "wordcount", arguments, {});
  const Text text = in.text(value);
  int64_t words = 0;
  bool inside = false;
  for (const char c : text.bytes()) {
    const bool word =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80;
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(words);
}

constexpr std::array kFilters = {
    FilterEntry{"abs", filter_abs},
    FilterEntry{"capitalize", filter_case<Case::kCapital>},
    FilterEntry{"center", filter_center},
    FilterEntry{"d", filter_default},
    FilterEntry{"default", filter_default},
    FilterEntry{"e", filter_escape},
    FilterEntry{"escape", filter_escape},
    FilterEntry{"float", filter_float},
    FilterEntry{"forceescape", filter_escape},
    FilterEntry{"format", filter_format},
    FilterEntry{"indent", filter_indent},
    FilterEntry{"int", filter_int},
    FilterEntry{"lower", filter_case<Case::kLower>},
    FilterEntry{"replace", filter_replace},
    FilterEntry{"round", filter_round},
    FilterEntry{"safe", filter_string},
    FilterEntry{"string", filter_string},
    FilterEntry{"title", filter_title},
    FilterEntry{"tojson", filter_tojson},
    FilterEntry{"trim", filter_trim},
    FilterEntry{"truncate", filter_truncate},
    FilterEntry{"upper", filter_case<Case::kUpper>},
    FilterEntry{"urlencode", filter_urlencode},
    FilterEntry{"wordcount", filter_wordcount},
};

}  // namespace

std::span<const FilterEntry> text_filters() { return kFilters; }

}  // namespace synod::jinja
