// Operations on text that keep the origin of every character.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace synod::jinja {
namespace {

bool is_letter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return false;
  }
}

enum class Letter { kLower, kUpper, kTitle };

void append_case(std::string& out, char32_t c, Letter letter) {
  if (letter != Letter::kLower && c == 0xDF) {  // the one common letter whose capital is two
    out += letter == Letter::kUpper ? "SS" : "Ss";
    return;
  }
  const auto code = static_cast<utf8proc_int32_t>(c);
  const auto changed = letter == Letter::kLower   ? utf8proc_tolower(code)
                       : letter == Letter::kUpper ? utf8proc_toupper(code)
                                                  : utf8proc_totitle(code);
  append_utf8(out, static_cast<char32_t>(changed));
}

}  // namespace

Text with_case(const Text& text, Case style) {
  Text result;
  bool after_letter = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text.view(), at);
    if (c.status != Utf8Status::kValid) {
      result.append(text, at, at + c.length);
    } else {
      bool upper = style == Case::kUpper;
      if (style == Case::kCapital) upper = at == 0;
      if (style == Case::kTitle) upper = !after_letter;
      if (style == Case::kSwap)
        upper = utf8proc_category(static_cast<utf8proc_int32_t>(c.value)) == UTF8PROC_CATEGORY_LL;
      std::string changed;
      const bool titled = style == Case::kCapital || style == Case::kTitle;
      append_case(changed, c.value, !upper ? Letter::kLower : titled ? Letter::kTitle : Letter::kUpper);
      result.append(changed, text.origin_at(at));
      after_letter = is_letter(c.value);
    }
    at += c.length;
  }
  return result;
}

Text strip(const Text& text, const Text* characters, bool left, bool right) {
  const std::string_view bytes = text.view();
  const auto goes = [&](size_t at, const Utf8Char& c) {
    if (characters != nullptr)
      return characters->bytes().find(bytes.substr(at, c.length)) != std::string::npos;
    return c.status == Utf8Status::kValid && is_space(c.value);
  };
  size_t begin = 0;
  size_t end = 0;  // behind the last character that stays
  bool started = !left;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, at);
    if (!goes(at, c)) {
      if (!started) begin = at;
      started = true;
      end = at + c.length;
    }
    at += c.length;
  }
  if (!right) end = bytes.size();
  if (!started) begin = end = bytes.size();
  return begin < end ? text.slice(begin, end) : Text();
}

Text replace(Interpreter& interpreter, const Text& text, const Text& from, const Text& to, int64_t count) {
  Text result;
  size_t at = 0;
  const auto put = [&](const Text& part) {
    interpreter.charge_bytes(part.size() + 16);
    result.append(part);
  };
  if (from.empty()) {  // between all characters
    const std::vector<size_t> offsets = character_offsets(text.view());
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (count != 0) put(to);
      if (count > 0) --count;
      if (i + 1 < offsets.size()) result.append(text, offsets[i], offsets[i + 1]);
    }
    return result;
  }
  while (count != 0) {
    const size_t found = text.bytes().find(from.bytes(), at);
    if (found == std::string::npos) break;
    result.append(text, at, found);
    put(to);
    at = found + from.size();
    if (count > 0) --count;
  }
  result.append(text, at, text.size());
  return result;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text.view(), at);
    const char32_t v = c.value;
    const bool is_end =
        c.status == Utf8Status::kValid &&
        ((v >= 0x0A && v <= 0x0D) || (v >= 0x1C && v <= 0x1E) || v == 0x85 || v == 0x2028 || v == 0x2029);
    size_t next = at + c.length;
    if (is_end) {
      if (v == '\r' && next < text.size() && text.bytes()[next] == '\n') ++next;
      lines.push_back(text.slice(begin, keep_ends ? next : at));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.slice(begin, text.size()));
  return lines;
}

namespace {

constexpr int64_t kMaxWidth = 10'000;

// One conversion of a format: flags, width, precision and the letter.
struct Conversion {
  bool left = false, zero = false, plus = false, blank = false, alternate = false, comma = false;
  char fill = ' ';
  char align = '\0';
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

std::string digits_of(Interpreter& interpreter, const Value& value, const Conversion& c) {
  const auto sign_of = [&](bool negative) -> std::string {
    return negative ? "-" : c.plus ? "+" : c.blank ? " " : "";
  };
  std::string digits;
  std::string sign;
  const std::string_view floats = "eEfFgG%";
  if (floats.find(c.type) != std::string_view::npos) {
    const auto number = value.number();
    if (!number) interpreter.error("format '{}' needs a number, got a {}", c.type, value.type_name());
    const int precision = static_cast<int>(std::min<int64_t>(c.precision < 0 ? 6 : c.precision, 100));
    const double size = std::abs(*number) * (c.type == '%' ? 100 : 1);
    switch (c.type) {
      case 'e':
        digits = fmt::format("{:.{}e}", size, precision);
        break;
      case 'E':
        digits = fmt::format("{:.{}E}", size, precision);
        break;
      case 'g':
        digits = fmt::format("{:.{}g}", size, precision);
        break;
      case 'G':
        digits = fmt::format("{:.{}G}", size, precision);
        break;
      case '%':
        digits = fmt::format("{:.{}f}%", size, precision);
        break;
      default:
        digits = fmt::format("{:.{}f}", size, precision);
        break;
    }
    sign = sign_of(std::signbit(*number));
  } else {
    auto integer = value.integer();
    if (!integer && value.is_float())
      integer = static_cast<int64_t>(std::clamp(*value.number(), -9e18, 9e18));
    if (!integer) interpreter.error("format '{}' needs a number, got a {}", c.type, value.type_name());
    const uint64_t size =
        *integer < 0 ? 0 - static_cast<uint64_t>(*integer) : static_cast<uint64_t>(*integer);
    switch (c.type) {
      case 'x':
        digits = fmt::format("{:x}", size);
        break;
      case 'X':
        digits = fmt::format("{:X}", size);
        break;
      case 'o':
        digits = fmt::format("{:o}", size);
        break;
      case 'b':
        digits = fmt::format("{:b}", size);
        break;
      default:
        digits = std::to_string(size);
        break;
    }
    while (static_cast<int64_t>(digits.size()) < std::min(c.precision, kMaxWidth)) digits.insert(0, "0");
    sign = sign_of(*integer < 0);
  }
  if (c.comma) {
    const size_t dot = std::min(digits.find('.'), digits.size());
    for (size_t at = dot; at > 3; at -= 3) digits.insert(at - 3, ",");
  }
  const auto missing = c.width - static_cast<int64_t>(digits.size() + sign.size());
  if (c.zero && !c.left && missing > 0) digits.insert(0, std::string(static_cast<size_t>(missing), '0'));
  return sign + digits;
}

void append_padded(Text& out, const Text& body, const Conversion& c, char fallback_align) {
  const char align = c.left ? '<' : c.align != '\0' ? c.align : fallback_align;
  const int64_t missing = std::max<int64_t>(c.width - count_characters(body.view()), 0);
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  out.append(std::string(static_cast<size_t>(before), c.fill), Origin::kMarkup);
  out.append(body);
  out.append(std::string(static_cast<size_t>(missing - before), c.fill), Origin::kMarkup);
}

int64_t take_number(std::string_view text, size_t& at) {
  int64_t number = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    number = std::min(number * 10 + (text[at++] - '0'), kMaxWidth + 1);
  }
  return number;
}

Text shortened(const Text& text, int64_t precision) {
  if (precision < 0) return text;
  const std::vector<size_t> offsets = character_offsets(text.view());
  return text.slice(0, offsets[std::min(offsets.size() - 1, static_cast<size_t>(precision))]);
}

}  // namespace

Text percent_format(Interpreter& interpreter, const Text& format, const std::vector<Value>& values,
                    const Dict* named) {
  const std::string_view text = format.view();
  Text out;
  size_t used = 0;
  const auto next_value = [&]() -> const Value& {
    if (used >= values.size()) interpreter.error("format: expected more than {} values", values.size());
    return values[used++];
  };
  size_t plain = 0;
  for (size_t at = text.find('%'); at != std::string_view::npos; at = text.find('%', plain)) {
    interpreter.charge(1);
    out.append(format, plain, at++);
    Conversion c;
    const Value* value = nullptr;
    if (at < text.size() && text[at] == '(') {
      const size_t close = text.find(')', at);
      if (close == std::string_view::npos) interpreter.error("format: a key without ')'");
      value = named != nullptr ? named->find(text.substr(at + 1, close - at - 1)) : nullptr;
      if (value == nullptr)
        interpreter.error("format: no value for '{}'", text.substr(at + 1, close - at - 1));
      at = close + 1;
    }
    for (; at < text.size(); ++at) {
      if (text[at] == '-')
        c.left = true;
      else if (text[at] == '0')
        c.zero = true;
      else if (text[at] == '+')
        c.plus = true;
      else if (text[at] == ' ')
        c.blank = true;
      else if (text[at] == '#')
        c.alternate = true;
      else
        break;
    }
    c.width = take_number(text, at);
    if (at < text.size() && text[at] == '.') c.precision = take_number(text, ++at);
    if (at >= text.size()) interpreter.error("format: incomplete at its end");
    if (c.width > kMaxWidth || c.precision > kMaxWidth)
      interpreter.error("format: a width over {}", kMaxWidth);
    c.type = text[at];
    plain = at + 1;
    if (c.type == '%') {
      out.append("%", format.origin_at(at));
      continue;
    }
    if (std::string_view("srdiufFeEgGxXoc").find(c.type) == std::string_view::npos) {
      interpreter.error("format: unknown conversion '%{}'", c.type);
    }
    if (value == nullptr) value = &next_value();
    if (c.type == 's' || c.type == 'c') {
      append_padded(out, shortened(interpreter.text(*value), c.precision), c, '>');
    } else if (c.type == 'r') {
      const Text list = interpreter.text(interpreter.make_list({*value}));  // [repr]
      append_padded(out, shortened(list.slice(1, list.size() - 1), c.precision), c, '>');
    } else {
      append_padded(out, Text(digits_of(interpreter, *value, c), Origin::kMarkup), c, '>');
    }
  }
  out.append(format, plain, text.size());
  if (used < values.size() && named == nullptr)
    interpreter.error("format: {} values are too many", values.size());
  return out;
}

Text brace_format(Interpreter& interpreter, const Text& format, const Arguments& arguments) {
  const std::string_view text = format.view();
  Text out;
  size_t automatic = 0;
  for (size_t at = 0; at < text.size();) {
    const char b = text[at];
    if (b != '{' && b != '}') {
      const size_t end = std::min(text.find_first_of("{}", at), text.size());
      out.append(format, at, end);
      at = end;
      continue;
    }
    interpreter.charge(1);
    if (at + 1 < text.size() && text[at + 1] == b) {
      out.append(format, at, at + 1);
      at += 2;
      continue;
    }
    const size_t close = text.find('}', at);
    if (b == '}' || close == std::string_view::npos) interpreter.error("format: a single '{}'", b);
    std::string_view field = text.substr(at + 1, close - at - 1);
    at = close + 1;
    std::string_view spec;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    const Value* value = nullptr;
    if (field.empty() || field.find_first_not_of("0123456789") == std::string_view::npos) {
      size_t digits = 0;
      const size_t index = field.empty() ? automatic++ : static_cast<size_t>(take_number(field, digits));
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& [key, argument] : arguments.named) {
        if (key == field) value = &argument;
      }
    }
    if (value == nullptr) interpreter.error("format: no value for '{{{}}}'", field);
    Conversion c;
    size_t i = 0;
    const auto is_align = [&](size_t k) {
      return k < spec.size() && (spec[k] == '<' || spec[k] == '>' || spec[k] == '^');
    };
    if (is_align(1)) c.fill = spec[i++];
    if (is_align(i)) c.align = spec[i++];
    if (i < spec.size() && (spec[i] == '+' || spec[i] == ' ' || spec[i] == '-')) {
      c.plus = spec[i] == '+';
      c.blank = spec[i] == ' ';
      ++i;
    }
    if (i < spec.size() && spec[i] == '0') c.zero = c.align == '\0';
    c.width = take_number(spec, i);
    if (i < spec.size() && spec[i] == ',') c.comma = true, ++i;
    if (i < spec.size() && spec[i] == '.') c.precision = take_number(spec, ++i);
    if (i < spec.size()) c.type = spec[i++];
    if (i != spec.size() || c.width > kMaxWidth || c.precision > kMaxWidth ||
        std::string_view(std::string_view("\0sdfFeEgGxXob%", 14)).find(c.type) == std::string_view::npos) {
      interpreter.error("format: '{}' is not supported", spec.substr(0, 40));
    }
    const bool numeric = value->is_number() && c.type != 's' && !value->is_bool();
    if (numeric && (c.type != '\0' || value->is_int())) {
      if (c.type == '\0') c.type = 'd';
      append_padded(out, Text(digits_of(interpreter, *value, c), Origin::kMarkup), c, '>');
    } else if (numeric && c.precision >= 0) {
      c.type = 'g';
      append_padded(out, Text(digits_of(interpreter, *value, c), Origin::kMarkup), c, '>');
    } else {
      append_padded(out, shortened(interpreter.text(*value), c.precision), c, numeric ? '>' : '<');
    }
  }
  return out;
}

}  // namespace synod::jinja
