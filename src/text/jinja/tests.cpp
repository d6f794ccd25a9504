// `value is test`.
#include <array>
#include <cmath>

#include "text/jinja/filters.h"
#include "text/utf8.h"

namespace synod::jinja {
namespace {

using TestFunction = bool (*)(Interpreter&, const Value&, const Value*);

struct TestEntry {
  std::string_view name;
  bool has_argument;
  TestFunction function;
};

template <int kRemainder>
bool has_parity(Interpreter& in, const Value& value, const Value*) {
  const Value rest = in.binary("%", value, Value(int64_t{2}));
  return in.equals(rest, Value(int64_t{kRemainder}));
}

// All letters of one case, and at least one.
template <Case kStyle>
bool is_case(Interpreter& in, const Value& value, const Value*) {
  const Text text = in.text(value);
  const Case other = kStyle == Case::kUpper ? Case::kLower : Case::kUpper;
  return with_case(text, kStyle).bytes() == text.bytes() && with_case(text, other).bytes() != text.bytes();
}

bool is_callable(Interpreter&, const Value& v, const Value*) {
  return v.object() != nullptr && v.object()->callable();
}
bool is_in(Interpreter& in, const Value& v, const Value* other) { return in.contains(*other, v); }
bool is_iterable(Interpreter&, const Value& v, const Value*) {
  return v.list() != nullptr || v.dict() != nullptr || v.is_string() || v.is_undefined();
}

// The same object, as far as a template can tell.
bool is_same(Interpreter& in, const Value& a, const Value* b) {
  if (a.is_bool() != b->is_bool() || a.is_float() != b->is_float()) return false;
  if (a.list() != nullptr) return a.list() == b->list();
  if (a.dict() != nullptr) return a.dict() == b->dict();
  return in.equals(a, *b);
}

bool is_filter(Interpreter& in, const Value& value, const Value*) {
  const std::string name = in.text(value).bytes();
  for (const std::span<const FilterEntry> table : {text_filters(), list_filters()}) {
    for (const auto& entry : table) {
      if (entry.first == name) return true;
    }
  }
  return false;
}

bool is_test(Interpreter& in, const Value& value, const Value*) {
  return is_known_test(in.text(value).bytes());
}

#define SYNOD_TEST(expression)                                      \
  [](Interpreter& in, const Value& v, const Value* other) -> bool { \
    static_cast<void>(in);                                          \
    static_cast<void>(other);                                       \
    return expression;                                              \
  }

constexpr std::array kTests = {
    TestEntry{"boolean", false, SYNOD_TEST(v.is_bool())},
    TestEntry{"callable", false, is_callable},
    TestEntry{"defined", false, SYNOD_TEST(!v.is_undefined())},
    TestEntry{"divisibleby", true, SYNOD_TEST(in.equals(in.binary("%", v, *other), Value(int64_t{0})))},
    TestEntry{"eq", true, SYNOD_TEST(in.equals(v, *other))},
    TestEntry{"equalto", true, SYNOD_TEST(in.equals(v, *other))},
    TestEntry{"==", true, SYNOD_TEST(in.equals(v, *other))},
    TestEntry{"escaped", false, SYNOD_TEST(false && v.is_bool())},
    TestEntry{"even", false, has_parity<0>},
    TestEntry{"false", false, SYNOD_TEST(v.is_bool() && !v.truth())},
    TestEntry{"filter", false, is_filter},
    TestEntry{"float", false, SYNOD_TEST(v.is_float())},
    TestEntry{"ge", true, SYNOD_TEST(in.order(v, *other) >= 0)},
    TestEntry{">=", true, SYNOD_TEST(in.order(v, *other) >= 0)},
    TestEntry{"gt", true, SYNOD_TEST(in.order(v, *other) > 0)},
    TestEntry{"greaterthan", true, SYNOD_TEST(in.order(v, *other) > 0)},
    TestEntry{">", true, SYNOD_TEST(in.order(v, *other) > 0)},
    TestEntry{"in", true, is_in},
    TestEntry{"integer", false, SYNOD_TEST(v.is_int())},
    TestEntry{"iterable", false, is_iterable},
    TestEntry{"le", true, SYNOD_TEST(in.order(v, *other) <= 0)},
    TestEntry{"<=", true, SYNOD_TEST(in.order(v, *other) <= 0)},
    TestEntry{"lower", false, is_case<Case::kLower>},
    TestEntry{"lt", true, SYNOD_TEST(in.order(v, *other) < 0)},
    TestEntry{"lessthan", true, SYNOD_TEST(in.order(v, *other) < 0)},
    TestEntry{"<", true, SYNOD_TEST(in.order(v, *other) < 0)},
    TestEntry{"mapping", false, SYNOD_TEST(v.dict() != nullptr)},
    TestEntry{"ne", true, SYNOD_TEST(!in.equals(v, *other))},
    TestEntry{"!=", true, SYNOD_TEST(!in.equals(v, *other))},
    TestEntry{"none", false, SYNOD_TEST(v.is_none())},
    TestEntry{"number", false, SYNOD_TEST(v.is_number())},
    TestEntry{"odd", false, has_parity<1>},
    TestEntry{"sameas", true, is_same},
    TestEntry{"sequence", false, is_iterable},
    TestEntry{"string", false, SYNOD_TEST(v.is_string())},
    TestEntry{"test", false, is_test},
    TestEntry{"true", false, SYNOD_TEST(v.is_bool() && v.truth())},
    TestEntry{"undefined", false, SYNOD_TEST(v.is_undefined())},
    TestEntry{"upper", false, is_case<Case::kUpper>},
};

#undef SYNOD_TEST

const TestEntry* find_test(std::string_view name) {
  for (const TestEntry& entry : kTests) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace

bool is_known_test(std::string_view name) { return find_test(name) != nullptr; }

bool Interpreter::test(std::string_view name, const Value& value, Arguments& arguments) {
  charge(1);
  const TestEntry* entry = find_test(name);
  if (entry == nullptr) error("unknown test '{}'", name.substr(0, 40));
  const size_t expected = entry->has_argument ? 1 : 0;
  if (arguments.positional.size() != expected || !arguments.named.empty()) {
    error("test '{}': expected {} arguments, got {}", name, expected,
          arguments.positional.size() + arguments.named.size());
  }
  return entry->function(*this, value, expected == 1 ? &arguments.positional[0] : nullptr);
}

}  // namespace synod::jinja
