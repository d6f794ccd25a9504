// Any bytes give a GGUF file or synod::Error. Every accepted tensor is read at both ends, every key with
// every getter, so that a view outside the input shows under ASan.
#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "formats/gguf.h"

namespace {

template <typename F>
void ignore_error(F&& f) {
  try {
    f();
  } catch (const synod::Error&) {
  }
}

void use(const synod::GgufFile& file) {
  const synod::GgufMetadata& metadata = file.metadata();
  for (const auto& entry : metadata.entries()) {
    const std::string& key = entry.first;
    ignore_error([&] { metadata.get_int(key); });
    ignore_error([&] { metadata.get_float(key); });
    ignore_error([&] { metadata.get_string(key); });
    ignore_error([&] { metadata.find_bool(key); });
    ignore_error([&] { metadata.find_ints(key); });
    ignore_error([&] { metadata.find_floats(key); });
    ignore_error([&] { metadata.find_bools(key); });
    ignore_error([&] { metadata.find_strings(key); });
  }
  volatile std::byte sink{};
  for (const synod::Tensor& t : file.tensors()) {
    sink = t.data[0];
    sink = t.data[t.bytes() - 1];
  }
  static_cast<void>(sink);
  static_cast<void>(file.data_bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  synod::set_log_level(synod::LogLevel::kError);
  ignore_error([&] { use(synod::GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf")); });
  return 0;
}
