// Shared by the tests of this folder: bytes of small GGUF files made by hand, so
// that the reader is not only tested against our own writer.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "temp_folder.h"

namespace synod::test {

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The message of the synod::Error that `f` throws; fails the test when it throws none or another kind.
inline std::string error_of(const std::function<void()>& f, Error::Kind kind = Error::Kind::kBadFile) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Keeps expected warnings out of the test log.
class QuietLog {
 public:
  QuietLog() { set_log_level(LogLevel::kError); }
  ~QuietLog() { set_log_level(level_); }

 private:
  LogLevel level_ = log_level();
};

// A GGUF file written field by field.
struct GgufBytes {
  struct Field {
    std::string name;
    size_t offset;
    size_t bytes;
  };
  struct Info {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first, as in the file
    uint32_t type;
    uint64_t offset;
  };

  uint32_t version = 3;
  uint64_t alignment = 32;        // of the data section
  std::vector<std::string> keys;  // encoded by key()
  std::vector<Info> infos;
  std::string data;
  std::vector<Field> fields;  // lengths and counts, filled by build()

  template <typename T>
  static std::string raw(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  }
  static std::string text(std::string_view s) {
    return raw(static_cast<uint64_t>(s.size())) + std::string(s);
  }

  // `payload` is the encoded value.
  GgufBytes& key(std::string_view name, uint32_t type, const std::string& payload) {
    keys.push_back(text(name) + raw(type) + payload);
    return *this;
  }
  GgufBytes& key_u32(std::string_view name, uint32_t v) { return key(name, 4, raw(v)); }
  GgufBytes& key_u16(std::string_view name, uint16_t v) { return key(name, 2, raw(v)); }
  GgufBytes& key_string(std::string_view name, std::string_view v) { return key(name, 8, text(v)); }

  GgufBytes& tensor(std::string name, std::vector<uint64_t> dims, uint32_t type, const std::string& bytes) {
    data.append((alignment - data.size() % alignment) % alignment, '\0');
    infos.push_back({std::move(name), std::move(dims), type, data.size()});
    data += bytes;
    return *this;
  }

  std::string build() {
    fields.clear();
    std::string out = "GGUF" + raw(version);
    const auto field = [&](std::string name, const std::string& bytes) {
      fields.push_back({std::move(name), out.size(), bytes.size()});
      out += bytes;
    };
    field("tensor count", raw(static_cast<uint64_t>(infos.size())));
    field("key count", raw(static_cast<uint64_t>(keys.size())));
    for (const std::string& k : keys) {
      uint64_t length = 0;
      std::memcpy(&length, k.data(), sizeof(length));
      fields.push_back({"key length", out.size(), 8});
      fields.push_back({"value type", out.size() + 8 + length, 4});
      fields.push_back({"value", out.size() + 12 + length, std::min<size_t>(k.size() - 12 - length, 8)});
      out += k;
    }
    for (const Info& i : infos) {
      field("name length", raw(static_cast<uint64_t>(i.name.size())));
      out += i.name;
      field("rank", raw(static_cast<uint32_t>(i.dims.size())));
      for (const uint64_t d : i.dims) field("dimension of " + i.name, raw(d));
      field("type", raw(i.type));
      field("offset", raw(i.offset));
    }
    if (!infos.empty()) out.append((alignment - out.size() % alignment) % alignment, '\0');
    return out + data;
  }
};

}  // namespace synod::test
