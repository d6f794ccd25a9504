// Any bytes give a grammar or synod::Error. What a walk through an accepted schema's masks writes is JSON.
#include <simdjson.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const bool any_order : {false, true}) {
      const auto grammar = synod::Grammar::from_json_schema(
          text, synod::fuzz::vocabulary(), {.spaces = !any_order, .any_key_order = any_order},
          synod::fuzz::small_limits());
      const auto written = synod::fuzz::walk(grammar, size);
      if (!written) continue;
      simdjson::dom::parser parser;
      if (parser.parse(*written).error() != simdjson::SUCCESS) __builtin_trap();
    }
  } catch (const synod::Error&) {
  }
  return 0;
}
