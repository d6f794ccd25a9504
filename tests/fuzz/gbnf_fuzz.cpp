// Any bytes give a grammar or synod::Error. An accepted grammar's masks hold only tokens that it then
// accepts, and a walk through them ends.
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
    synod::fuzz::walk(synod::Grammar::from_gbnf(text, synod::fuzz::vocabulary(), synod::fuzz::small_limits()),
                      size);
  } catch (const synod::Error&) {
  }
  return 0;
}
