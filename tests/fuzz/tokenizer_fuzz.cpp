// Any bytes give a tokenizer or synod::Error. An accepted tokenizer must encode any text, every id it gives
// must be in its vocabulary, and incremental decoding must end.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "text/tokenizer.h"

namespace {

void use(const synod::Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, parse_special);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
    }
    tokenizer.decode(ids);
    tokenizer.decode(ids, false);
    synod::StreamDecoder stream(tokenizer);
    for (const int32_t id : ids) stream.push(id);
    stream.flush();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  synod::set_log_level(synod::LogLevel::kError);
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const synod::Tokenizer tokenizer(synod::tokenizer_data_from_json(json, "fuzz.json"), "fuzz.json");
    use(tokenizer, "Hello  world 123\n\xf0\x9f\x98\x80 <bos>\xff\xe2\x96");
    constexpr size_t kMaxTextBytes = 4096;
    use(tokenizer, json.substr(0, kMaxTextBytes));
  } catch (const synod::Error&) {
  }
  return 0;
}
