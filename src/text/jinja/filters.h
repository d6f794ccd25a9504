// Filter functions by name; text filters and list filters live in files of their own.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "text/jinja/interpreter.h"

namespace synod::jinja {

using FilterFunction = Value (*)(Interpreter&, const Value&, Arguments&);
using FilterEntry = std::pair<std::string_view, FilterFunction>;

std::span<const FilterEntry> text_filters();
std::span<const FilterEntry> list_filters();
bool is_known_test(std::string_view name);

}  // namespace synod::jinja
