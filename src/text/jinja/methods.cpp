// Methods of strings, lists and dictionaries: Python's, without those that change their object.
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <span>

#include "text/jinja/interpreter.h"
#include "text/utf8.h"

namespace synod::jinja {
namespace {

using Method = Value (*)(Interpreter&, const Value&, const Arguments&);
using Entry = std::pair<std::string_view, Method>;

// --- Strings ---

template <Case kStyle>
Value change_case(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "method", arguments, {});
  return in.make(with_case(*self.text(), kStyle));
}

template <bool kLeft, bool kRight>
Value strip_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "strip", arguments, {"chars"});
  const Value* chars = parameters.find(0);
  const bool given = chars != nullptr && !chars->is_none();
  if (given && chars->text() == nullptr) in.error("strip: expected a string, got a {}", chars->type_name());
  return in.make(strip(*self.text(), given ? chars->text() : nullptr, kLeft, kRight));
}

template <bool kStart>
Value has_affix(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, kStart ? "startswith" : "endswith", arguments, {"affix", "start", "end"});
  Value text = self;
  if (parameters.find(1) != nullptr || parameters.find(2) != nullptr) {
    text = in.slice(self, parameters.find(1) != nullptr ? *parameters.find(1) : Value(None{}),
                    parameters.find(2) != nullptr ? *parameters.find(2) : Value(None{}), None{});
  }
  const auto fits = [&](const Value& affix) {
    if (affix.is_undefined()) in.undefined_error(affix);
    if (affix.text() == nullptr)
      in.error("startswith and endswith need a string, got a {}", affix.type_name());
    return kStart ? text.text()->view().starts_with(affix.text()->view())
                  : text.text()->view().ends_with(affix.text()->view());
  };
  const Value& affix = parameters.need(0);
  if (const List* list = affix.list(); list != nullptr && list->is_tuple) {
    return Value(std::any_of(list->items.begin(), list->items.end(), fits));
  }
  return Value(fits(affix));
}

// Splits at white space or at `separator`, from the left or the right, at most `limit` times.
std::vector<Value> split_pieces(Interpreter& in, const Text& text, const Value* separator, int64_t limit,
                                bool right) {
  std::vector<std::pair<size_t, size_t>> pieces;
  const std::string_view bytes = text.view();
  if (separator != nullptr && !separator->is_none()) {
    if (separator->text() == nullptr) in.error("split: expected a string, got a {}", separator->type_name());
    const std::string& mark = separator->text()->bytes();
    if (mark.empty()) in.error("split: the separator is empty");
    size_t begin = 0;
    for (size_t at = bytes.find(mark); at != std::string_view::npos; at = bytes.find(mark, begin)) {
      pieces.emplace_back(begin, at);
      begin = at + mark.size();
    }
    pieces.emplace_back(begin, bytes.size());
  } else {
    size_t begin = std::string_view::npos;
    for (size_t at = 0; at < bytes.size();) {
      const Utf8Char c = decode_utf8(bytes, at);
      const bool space = c.status == Utf8Status::kValid && is_space(c.value);
      if (!space && begin == std::string_view::npos) begin = at;
      if (space && begin != std::string_view::npos) {
        pieces.emplace_back(begin, at);
        begin = std::string_view::npos;
      }
      at += c.length;
    }
    if (begin != std::string_view::npos) pieces.emplace_back(begin, bytes.size());
  }
  in.charge(static_cast<int64_t>(pieces.size()));
  const auto n = static_cast<int64_t>(pieces.size());
  if (limit >= 0 && n > limit + 1) {  // the rest stays whole
    if (right) {
      auto first = pieces.begin() + (n - limit - 1);
      first->first = pieces.front().first;
      pieces.erase(pieces.begin(), first);
    } else {
      pieces[static_cast<size_t>(limit)].second = pieces.back().second;
      pieces.resize(static_cast<size_t>(limit) + 1);
    }
    // White space around the rest, outside the cuts, is kept where Python keeps it.
    if (separator == nullptr || separator->is_none()) {
      if (right) {
        pieces.front().first = 0;
      } else {
        pieces.back().second = bytes.size();
      }
    }
  }
  std::vector<Value> result;
  for (const auto& [begin, end] : pieces) result.push_back(text.slice(begin, end));
  return result;
}

template <bool kRight>
Value split_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "split", arguments, {"sep", "maxsplit"});
  return in.make_list(split_pieces(in, *self.text(), parameters.find(0), parameters.integer(1, -1), kRight));
}

Value split_text_lines(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "splitlines", arguments, {"keepends"});
  std::vector<Value> lines;
  for (Text& line : split_lines(*self.text(), parameters.flag(0, false))) lines.emplace_back(std::move(line));
  return in.make_list(std::move(lines));
}

Value join_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "join", arguments, {"iterable"});
  Text result;
  bool first = true;
  for (const Value& item : in.items(parameters.need(0))) {
    if (item.text() == nullptr) in.error("join: expected strings, got a {}", item.type_name());
    in.charge_bytes(self.text()->size() + item.text()->size() + 64);
    if (!first) result.append(*self.text());
    first = false;
    result.append(*item.text());
  }
  return in.make(std::move(result));
}

Value replace_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "replace", arguments, {"old", "new", "count"});
  const Text *from = parameters.need(0).text(), *to = parameters.need(1).text();
  if (from == nullptr || to == nullptr) in.error("replace: expected two strings");
  return in.make(replace(in, *self.text(), *from, *to, parameters.integer(2, -1)));
}

const Text& text_argument(Interpreter& in, const Parameters& parameters, std::string_view what) {
  const Value& value = parameters.need(0);
  if (value.is_undefined()) in.undefined_error(value);
  if (value.text() == nullptr) in.error("{}: expected a string, got a {}", what, value.type_name());
  return *value.text();
}

template <bool kLast, bool kMustExist>
Value find_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "find", arguments, {"sub"});
  const Text& part = text_argument(in, parameters, "find");
  const std::string& bytes = self.text()->bytes();
  in.charge_bytes(bytes.size());
  const size_t at = kLast ? bytes.rfind(part.bytes()) : bytes.find(part.bytes());
  if (at == std::string::npos) {
    if (kMustExist) in.error("index: the string is not there");
    return Value(int64_t{-1});
  }
  return Value(count_characters(std::string_view(bytes).substr(0, at)));
}

Value count_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "count", arguments, {"sub"});
  const std::string& part = text_argument(in, parameters, "count").bytes();
  const std::string& bytes = self.text()->bytes();
  in.charge_bytes(bytes.size());
  if (part.empty()) return Value(count_characters(bytes) + 1);
  int64_t n = 0;
  for (size_t at = bytes.find(part); at != std::string::npos; at = bytes.find(part, at + part.size())) ++n;
  return Value(n);
}

template <char kAlign>
Value pad_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "pad", arguments, {"width", "fillchar"});
  const int64_t width = parameters.integer(0, 0);
  if (width > 1'000'000) in.error("a width over 1000000");
  const Text fill = parameters.text(1, " ");
  if (count_characters(fill.view()) != 1) in.error("the fill must be one character");
  const int64_t missing = std::max<int64_t>(width - count_characters(self.text()->view()), 0);
  // Python's centre leans left for even widths and right for odd ones.
  const int64_t before = kAlign == '>' ? missing : kAlign == '<' ? 0 : missing / 2 + (missing & width & 1);
  Text result = repeated(in, fill, before);
  result.append(*self.text());
  result.append(repeated(in, fill, missing - before));
  return in.make(std::move(result));
}

Value zfill_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "zfill", arguments, {"width"});
  const Text& text = *self.text();
  const int64_t missing = parameters.integer(0, 0) - count_characters(text.view());
  const size_t sign = !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+') ? 1 : 0;
  Text result = text.slice(0, sign);
  result.append(repeated(in, Text("0", Origin::kMarkup), missing));
  result.append(text, sign, text.size());
  return in.make(std::move(result));
}

template <bool kPrefix>
Value remove_affix(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "affix", arguments, {"affix"});
  const Text& text = *self.text();
  const Text& affix = text_argument(in, parameters, kPrefix ? "removeprefix" : "removesuffix");
  const bool there = kPrefix ? text.view().starts_with(affix.view()) : text.view().ends_with(affix.view());
  if (!there) return self;
  return kPrefix ? text.slice(affix.size(), text.size()) : text.slice(0, text.size() - affix.size());
}

template <bool kRight>
Value partition_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "partition", arguments, {"sep"});
  const Text& text = *self.text();
  const Text& mark = text_argument(in, parameters, "partition");
  if (mark.empty()) in.error("partition: the separator is empty");
  const size_t at = kRight ? text.bytes().rfind(mark.bytes()) : text.bytes().find(mark.bytes());
  if (at == std::string::npos) {
    return kRight ? in.make_list({Text(), Text(), text}, true) : in.make_list({text, Text(), Text()}, true);
  }
  return in.make_list({text.slice(0, at), mark, text.slice(at + mark.size(), text.size())}, true);
}

Value format_text(Interpreter& in, const Value& self, const Arguments& arguments) {
  return in.make(brace_format(in, *self.text(), arguments));
}

enum class Class { kAlpha, kDigit, kAlnum, kSpace, kAscii };

bool is_of(Class kind, char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const bool alpha = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
  const bool digit = category == UTF8PROC_CATEGORY_ND;
  switch (kind) {
    case Class::kAlpha:
      return alpha;
    case Class::kDigit:
      return digit;
    case Class::kAlnum:
      return alpha || digit || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
    case Class::kSpace:
      return is_space(c);
    case Class::kAscii:
      return c < 0x80;
  }
  return false;
}

template <Class kClass>
Value all_of(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "method", arguments, {});
  const std::string_view bytes = self.text()->view();
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, at);
    if (c.status != Utf8Status::kValid || !is_of(kClass, c.value)) return Value(false);
    at += c.length;
  }
  return Value(!bytes.empty() || kClass == Class::kAscii);
}

template <bool kUpper>
Value has_case(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "method", arguments, {});
  Arguments none;
  return Value(in.test(kUpper ? "upper" : "lower", self, none));
}

Value is_title(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "istitle", arguments, {});
  const Text& text = *self.text();
  return Value(with_case(text, Case::kTitle).bytes() == text.bytes() &&
               with_case(text, Case::kSwap).bytes() != text.bytes());
}

constexpr std::array kTextMethods = {
    Entry{"capitalize", change_case<Case::kCapital>},
    Entry{"casefold", change_case<Case::kLower>},
    Entry{"center", pad_text<'^'>},
    Entry{"count", count_text},
    Entry{"endswith", has_affix<false>},
    Entry{"find", find_text<false, false>},
    Entry{"format", format_text},
    Entry{"index", find_text<false, true>},
    Entry{"isalnum", all_of<Class::kAlnum>},
    Entry{"isalpha", all_of<Class::kAlpha>},
    Entry{"isascii", all_of<Class::kAscii>},
    Entry{"isdecimal", all_of<Class::kDigit>},
    Entry{"isdigit", all_of<Class::kDigit>},
    Entry{"islower", has_case<false>},
    Entry{"isnumeric", all_of<Class::kDigit>},
    Entry{"isspace", all_of<Class::kSpace>},
    Entry{"istitle", is_title},
    Entry{"isupper", has_case<true>},
    Entry{"join", join_text},
    Entry{"ljust", pad_text<'<'>},
    Entry{"lower", change_case<Case::kLower>},
    Entry{"lstrip", strip_text<true, false>},
    Entry{"partition", partition_text<false>},
    Entry{"removeprefix", remove_affix<true>},
    Entry{"removesuffix", remove_affix<false>},
    Entry{"replace", replace_text},
    Entry{"rfind", find_text<true, false>},
    Entry{"rindex", find_text<true, true>},
    Entry{"rjust", pad_text<'>'>},
    Entry{"rpartition", partition_text<true>},
    Entry{"rsplit", split_text<true>},
    Entry{"rstrip", strip_text<false, true>},
    Entry{"split", split_text<false>},
    Entry{"splitlines", split_text_lines},
    Entry{"startswith", has_affix<true>},
    Entry{"strip", strip_text<true, true>},
    Entry{"swapcase", change_case<Case::kSwap>},
    Entry{"title", change_case<Case::kTitle>},
    Entry{"upper", change_case<Case::kUpper>},
    Entry{"zfill", zfill_text},
};

// --- Lists and dictionaries ---

Value copy(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "copy", arguments, {});
  return self;
}

Value count_item(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "count", arguments, {"value"});
  int64_t n = 0;
  for (const Value& item : self.list()->items) n += in.equals(item, parameters.need(0)) ? 1 : 0;
  return Value(n);
}

Value find_item(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "index", arguments, {"value"});
  const auto& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (in.equals(items[i], parameters.need(0))) return Value(static_cast<int64_t>(i));
  }
  in.error("index: the value is not in the list");
}

// The published environment refuses these too: values cannot change.
Value refuse(Interpreter& in, const Value& self, const Arguments&) {
  in.error("a {} cannot be changed by a template", self.type_name());
}

constexpr std::array kListMethods = {
    Entry{"append", refuse}, Entry{"clear", refuse},    Entry{"copy", copy},     Entry{"count", count_item},
    Entry{"extend", refuse}, Entry{"index", find_item}, Entry{"insert", refuse}, Entry{"pop", refuse},
    Entry{"remove", refuse}, Entry{"reverse", refuse},  Entry{"sort", refuse},
};

Value get(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "get", arguments, {"key", "default"});
  if (const Value* found = self.dict()->find(parameters.need(0))) return *found;
  return parameters.find(1) != nullptr ? *parameters.find(1) : Value(None{});
}

template <bool kKeys, bool kValues>
Value members(Interpreter& in, const Value& self, const Arguments& arguments) {
  const Parameters parameters(in, "method", arguments, {});
  std::vector<Value> result;
  for (const auto& [key, value] : self.dict()->items()) {
    result.push_back(kKeys && kValues ? in.make_list({key, value}, true) : kKeys ? key : value);
  }
  return in.make_list(std::move(result));
}

constexpr std::array kDictMethods = {
    Entry{"clear", refuse},
    Entry{"copy", copy},
    Entry{"get", get},
    Entry{"items", members<true, true>},
    Entry{"keys", members<true, false>},
    Entry{"pop", refuse},
    Entry{"popitem", refuse},
    Entry{"setdefault", refuse},
    Entry{"update", refuse},
    Entry{"values", members<false, true>},
};

std::span<const Entry> methods_of(const Value& value) {
  if (value.text() != nullptr) return kTextMethods;
  if (value.list() != nullptr) return kListMethods;
  if (value.dict() != nullptr) return kDictMethods;
  return {};
}

Method find_method(const Value& value, std::string_view name) {
  for (const auto& [key, method] : methods_of(value)) {
    if (key == name) return method;
  }
  return nullptr;
}

class Bound final : public Object {
 public:
  Bound(Value self, Method method) : self_(std::move(self)), method_(method) {}
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Interpreter& interpreter, Arguments& arguments) override {
    return method_(interpreter, self_, arguments);
  }

 private:
  Value self_;
  Method method_;
};

}  // namespace

bool has_method(const Value& value, std::string_view name) { return find_method(value, name) != nullptr; }

Value call_method(Interpreter& interpreter, const Value& value, std::string_view name,
                  const Arguments& arguments) {
  const Method method = find_method(value, name);
  SYNOD_ASSERT(method != nullptr);
  interpreter.charge(1);
  if (const Text* text = value.text()) interpreter.charge_bytes(text->size());
  return method(interpreter, value, arguments);
}

Value bound_method(const Value& value, std::string_view name) {
  return Value(std::make_shared<Bound>(value, find_method(value, name)));
}

}  // namespace synod::jinja
