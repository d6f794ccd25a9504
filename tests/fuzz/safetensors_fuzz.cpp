// Any bytes give a safetensors file or synod::Error. The header text also goes through parse_json, which
// reads the same hostile JSON in configuration files.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"

namespace {

void use(const synod::SafetensorsFile& file) {
  volatile std::byte sink{};
  for (const synod::Tensor& t : file.tensors()) {
    if (file.find(t.name) != &t) __builtin_trap();
    if (t.bytes() == 0) continue;
    sink = t.data[0];
    sink = t.data[t.bytes() - 1];
  }
  static_cast<void>(sink);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  synod::set_log_level(synod::LogLevel::kError);
  try {
    use(synod::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz.safetensors"));
  } catch (const synod::Error&) {
  }
  constexpr size_t kLengthBytes = 8;
  if (size <= kLengthBytes) return 0;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data) + kLengthBytes, size - kLengthBytes);
    const nlohmann::json value = synod::parse_json(text, "fuzz.json");
    // What was accepted must survive being written and read again.
    if (synod::parse_json(value.dump(), "again.json") != value) __builtin_trap();
  } catch (const synod::Error&) {
  }
  return 0;
}
