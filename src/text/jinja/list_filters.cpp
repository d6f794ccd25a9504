// Filters on lists and dictionaries.
#include <algorithm>
#include <array>

#include "text/jinja/filters.h"

namespace synod::jinja {
namespace {

// 'a.b.0': members and indices one after another. `fallback`, if not null, stands for each that is missing.
Value member_at(Interpreter& in, Value value, const Value& path, const Value* fallback = nullptr) {
  const auto present = [&](Value found) {
    return found.is_undefined() && fallback != nullptr ? *fallback : found;
  };
  if (path.integer()) return present(in.item(value, path));
  const Text text = in.text(path);
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t dot = std::min(text.bytes().find('.', begin), text.size());
    const std::string part = text.bytes().substr(begin, dot - begin);
    const bool number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    value =
        present(in.item(value, number ? Value(static_cast<int64_t>(std::stoll(part))) : Value::markup(part)));
    begin = dot + 1;
  }
  return value;
}

// What is compared when case does not count.
Value folded(Interpreter& in, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  in.charge_bytes(value.text()->size());
  return with_case(*value.text(), Case::kLower);
}

Value filter_attr(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "attr", arguments, {"name"});
  const std::string name = in.text(parameters.need(0)).bytes();
  if (value.dict() != nullptr && !has_method(value, name)) {  // entries are no attributes
    return Value::undefined(fmt::format("a dict has no attribute '{}'", name));
  }
  return in.attribute(value, name);
}

Value filter_batch(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "batch", arguments, {"linecount", "fill_with"});
  const int64_t size = parameters.integer(0, 0);
  if (size < 1) in.error("batch: expected lines of 1 item or more, got {}", size);
  std::vector<Value> lines;
  std::vector<Value> line;
  for (Value& item : in.items(value)) {
    if (static_cast<int64_t>(line.size()) == size) lines.push_back(in.make_list(std::exchange(line, {})));
    line.push_back(std::move(item));
  }
  if (!line.empty()) {
    const Value* fill = parameters.find(1);
    if (fill != nullptr && !fill->is_none()) {
      in.charge(size);
      while (static_cast<int64_t>(line.size()) < size) line.push_back(*fill);
    }
    lines.push_back(in.make_list(std::move(line)));
  }
  return in.make_list(std::move(lines));
}

Value filter_slice(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "slice", arguments, {"slices", "fill_with"});
  const std::vector<Value> items = in.items(value);
  const int64_t slices = parameters.integer(0, 0);
  if (slices < 1) in.error("slice: expected 1 slice or more, got {}", slices);
  in.charge(slices);
  const auto n = static_cast<int64_t>(items.size());
  const int64_t extra = n % slices;
  std::vector<Value> result;
  for (int64_t i = 0; i < slices; ++i) {
    const int64_t begin = i * (n / slices) + std::min(i, extra);
    const int64_t end = (i + 1) * (n / slices) + std::min(i + 1, extra);
    std::vector<Value> part(items.begin() + begin, items.begin() + end);
    const Value* fill = parameters.find(1);
    if (fill != nullptr && !fill->is_none() && i >= extra) part.push_back(*fill);
    result.push_back(in.make_list(std::move(part)));
  }
  return in.make_list(std::move(result));
}

Value filter_length(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "length", arguments, {});
  return Value(in.length(value));
}

// Stable, by `key` of each item. std::stable_sort must not meet an order that throws half-way with moved
// values: indices are sorted, then the items taken in order.
template <typename Key>
std::vector<Value> sorted(Interpreter& in, const std::vector<Value>& items, bool reverse, Key&& key) {
  std::vector<Value> keys;
  std::vector<size_t> order;
  for (size_t i = 0; i < items.size(); ++i) {
    keys.push_back(key(items[i]));
    order.push_back(i);
  }
  in.charge(static_cast<int64_t>(items.size()) * 8);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int sign = in.order(keys[a], keys[b]);
    return reverse ? sign > 0 : sign < 0;
  });
  std::vector<Value> result;
  for (const size_t i : order) result.push_back(items[i]);
  return result;
}

// Several attributes, separated by commas, compare one after another.
Value sort_key(Interpreter& in, const Value& item, const Value* attribute, bool case_sensitive) {
  if (attribute == nullptr || attribute->is_none()) return folded(in, item, case_sensitive);
  if (attribute->text() == nullptr || attribute->text()->bytes().find(',') == std::string::npos) {
    return folded(in, member_at(in, item, *attribute), case_sensitive);
  }
  std::vector<Value> parts;
  std::string_view path = attribute->text()->view();
  while (true) {
    const size_t comma = std::min(path.find(','), path.size());
    parts.push_back(
        folded(in, member_at(in, item, Value::markup(std::string(path.substr(0, comma)))), case_sensitive));
    if (comma == path.size()) break;
    path.remove_prefix(comma + 1);
  }
  return in.make_list(std::move(parts));
}

Value filter_sort(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "sort", arguments, {"reverse", "case_sensitive", "attribute"});
  return in.make_list(sorted(in, in.items(value), parameters.flag(0, false), [&](const Value& item) {
    return sort_key(in, item, parameters.find(2), parameters.flag(1, false));
  }));
}

std::vector<Value> entries(Interpreter& in, const Value& value, std::string_view what) {
  std::vector<Value> pairs;
  if (value.is_undefined()) in.undefined_error(value);
  if (value.dict() == nullptr) in.error("{}: expected a dictionary, got a {}", what, value.type_name());
  for (const auto& [key, item] : value.dict()->items()) pairs.push_back(in.make_list({key, item}, true));
  return pairs;
}

Value filter_dictsort(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = parameters.text(1, "key").bytes();
  if (by != "key" && by != "value") in.error("dictsort: by: expected key or value, got {}", by);
  return in.make_list(
      sorted(in, entries(in, value, "dictsort"), parameters.flag(2, false), [&](const Value& pair) {
        return folded(in, pair.list()->items[by == "key" ? 0 : 1], parameters.flag(0, false));
      }));
}

Value filter_items(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "items", arguments, {});
  if (value.is_undefined()) return in.make_list({});
  return in.make_list(entries(in, value, "items"));
}

template <bool kLast>
Value filter_end(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, kLast ? "last" : "first", arguments, {});
  const std::vector<Value> items = in.items(value);
  if (items.empty()) return Value::undefined("the sequence is empty");
  return kLast ? items.back() : items.front();
}

Value filter_groupby(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "groupby", arguments, {"attribute", "default", "case_sensitive"});
  const Value attribute = parameters.need(0);
  const bool case_sensitive = parameters.flag(2, false);
  const auto raw_key = [&](const Value& item) { return member_at(in, item, attribute, parameters.find(1)); };
  const auto key = [&](const Value& item) { return folded(in, raw_key(item), case_sensitive); };
  std::vector<Value> groups;
  std::vector<Value> members;
  const auto close = [&] {
    if (members.empty()) return;
    const Value name = raw_key(members.front());
    groups.push_back(in.make(
        List{.items = {name, in.make_list(std::exchange(members, {}))}, .is_tuple = true, .is_group = true}));
  };
  for (const Value& item : sorted(in, in.items(value), false, key)) {
    if (!members.empty() && !in.equals(key(members.front()), key(item))) close();
    members.push_back(item);
  }
  close();
  return in.make_list(std::move(groups));
}

Value filter_join(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "join", arguments, {"d", "attribute"});
  const Text separator = parameters.text(0, "");
  Text result;
  bool first = true;
  for (const Value& item : in.items(value)) {
    if (!first) {
      in.charge_bytes(separator.size() + 64);
      result.append(separator);
    }
    first = false;
    const bool member = parameters.find(1) != nullptr && !parameters.find(1)->is_none();
    result.append(in.text(member ? member_at(in, item, *parameters.find(1)) : item));
  }
  return in.make(std::move(result));
}

Value filter_list(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "list", arguments, {});
  return in.make_list(in.items(value));
}

// The first positional argument names a filter or test, the rest are its arguments.
std::string take_name(Interpreter& in, std::string_view what, Arguments& arguments) {
  const Value name = arguments.positional.front();
  if (name.text() == nullptr) in.error("{}: expected a name, got a {}", what, name.type_name());
  arguments.positional.erase(arguments.positional.begin());
  return name.text()->bytes();
}

Value filter_map(Interpreter& in, const Value& value, Arguments& arguments) {
  std::vector<Value> result;
  if (arguments.positional.empty()) {
    const Parameters parameters(in, "map", arguments, {"attribute", "default"});
    for (const Value& item : in.items(value)) {
      result.push_back(member_at(in, item, parameters.need(0), parameters.find(1)));
    }
    return in.make_list(std::move(result));
  }
  const std::string name = take_name(in, "map", arguments);
  for (const Value& item : in.items(value)) {
    Arguments copy = arguments;
    result.push_back(in.filter(name, item, copy));
  }
  return in.make_list(std::move(result));
}

template <bool kKeep, bool kAttribute>
Value filter_select(Interpreter& in, const Value& value, Arguments& arguments) {
  constexpr std::string_view kName =
      kAttribute ? (kKeep ? "selectattr" : "rejectattr") : (kKeep ? "select" : "reject");
  Value attribute;
  if (kAttribute) {
    if (arguments.positional.empty()) in.error("{}: the name of the attribute is missing", kName);
    attribute = arguments.positional.front();
    arguments.positional.erase(arguments.positional.begin());
  }
  const bool by_truth = arguments.positional.empty();
  const std::string name = by_truth ? "" : take_name(in, kName, arguments);
  std::vector<Value> result;
  for (const Value& item : in.items(value)) {
    const Value subject = kAttribute ? member_at(in, item, attribute) : item;
    Arguments copy = arguments;
    const bool holds = by_truth ? subject.truth() : in.test(name, subject, copy);
    if (holds == kKeep) result.push_back(item);
  }
  return in.make_list(std::move(result));
}

template <bool kMax>
Value filter_extreme(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, kMax ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> items = in.items(value);
  if (items.empty()) return Value::undefined("the sequence is empty");
  const auto key = [&](const Value& item) {
    return sort_key(in, item, parameters.find(1), parameters.flag(0, false));
  };
  size_t best = 0;
  Value best_key = key(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value candidate = key(items[i]);
    const int sign = in.order(candidate, best_key);
    if (kMax ? sign <= 0 : sign >= 0) continue;
    best = i;
    best_key = candidate;
  }
  return items[best];
}

Value filter_reverse(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "reverse", arguments, {});
  std::vector<Value> items = in.items(value);
  std::reverse(items.begin(), items.end());
  if (value.text() == nullptr) return in.make_list(std::move(items));
  Text text;
  for (const Value& item : items) text.append(*item.text());
  return in.make(std::move(text));
}

Value filter_sum(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "sum", arguments, {"attribute", "start"});
  Value total = parameters.find(1) != nullptr ? *parameters.find(1) : Value(int64_t{0});
  const bool member = parameters.find(0) != nullptr && !parameters.find(0)->is_none();
  for (const Value& item : in.items(value)) {
    total = in.binary("+", total, member ? member_at(in, item, *parameters.find(0)) : item);
  }
  return total;
}

Value filter_unique(Interpreter& in, const Value& value, Arguments& arguments) {
  const Parameters parameters(in, "unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> result;
  Dict seen;
  for (const Value& item : in.items(value)) {
    const Value key = sort_key(in, item, parameters.find(1), parameters.flag(0, false));
    if (seen.find(key) != nullptr) continue;
    if (!seen.set(key, None{})) in.error("unique: a {} cannot be compared", key.type_name());
    result.push_back(item);
  }
  return in.make_list(std::move(result));
}

constexpr std::array kFilters = {
    FilterEntry{"attr", filter_attr},
    FilterEntry{"batch", filter_batch},
    FilterEntry{"count", filter_length},
    FilterEntry{"dictsort", filter_dictsort},
    FilterEntry{"first", filter_end<false>},
    FilterEntry{"groupby", filter_groupby},
    FilterEntry{"items", filter_items},
    FilterEntry{"join", filter_join},
    FilterEntry{"last", filter_end<true>},
    FilterEntry{"length", filter_length},
    FilterEntry{"list", filter_list},
    FilterEntry{"map", filter_map},
    FilterEntry{"max", filter_extreme<true>},
    FilterEntry{"min", filter_extreme<false>},
    FilterEntry{"reject", filter_select<false, false>},
    FilterEntry{"rejectattr", filter_select<false, true>},
    FilterEntry{"reverse", filter_reverse},
    FilterEntry{"select", filter_select<true, false>},
    FilterEntry{"selectattr", filter_select<true, true>},
    FilterEntry{"slice", filter_slice},
    FilterEntry{"sort", filter_sort},
    FilterEntry{"sum", filter_sum},
    FilterEntry{"unique", filter_unique},
};

}  // namespace

std::span<const FilterEntry> list_filters() { return kFilters; }

Value Interpreter::filter(std::string_view name, const Value& value, Arguments& arguments) {
  charge(1);
  for (const std::span<const FilterEntry> table : {text_filters(), list_filters()}) {
    for (const auto& [key, function] : table) {
      if (key == name) return function(*this, value, arguments);
    }
  }
  error("unknown filter '{}'", name.substr(0, 40));
}

}  // namespace synod::jinja
