// What the tests of the tokenizers share: files, fixtures, a reproducible random text source, a clock.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace synod::text_testing {

inline std::string data_path(const std::string& name) {
  return std::string(SYNOD_SOURCE_DIR) + "/tests/data/tokenizer/" + name;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline Tokenizer load_tokenizer(const std::string& path) {
  return Tokenizer(tokenizer_data_from_json(read_file(path), path), path);
}

inline const Tokenizer& gemma4_mini() {
  static const Tokenizer tokenizer = load_tokenizer(data_path("gemma4-mini.tokenizer.json"));
  return tokenizer;
}

inline const Tokenizer& deepseek4_mini() {
  static const Tokenizer tokenizer = load_tokenizer(data_path("deepseek4-mini.tokenizer.json"));
  return tokenizer;
}

struct Sample {
  std::string text;
  std::vector<int32_t> ids;
};

inline std::vector<Sample> read_samples(const std::string& path) {
  std::vector<Sample> samples;
  for (const auto& entry : nlohmann::json::parse(read_file(path))) {
    samples.push_back({entry.at("text").get<std::string>(), entry.at("ids").get<std::vector<int32_t>>()});
  }
  return samples;
}

// Seeded; std distributions differ between libraries, so only the engine's own numbers are used.
class RandomText {
 public:
  explicit RandomText(uint64_t seed) : engine_(seed) {}

  size_t below(size_t n) { return size_t(engine_() % n); }

  std::string bytes(size_t n) {
    std::string text;
    while (text.size() < n) text.push_back(char(engine_()));
    return text;
  }

  char32_t scalar() {
    for (;;) {
      const auto value = char32_t(below(4) == 0 ? below(0x110000) : below(0x3100));
      if (value < 0xD800 || value > 0xDFFF) return value;
    }
  }

  std::string unicode(size_t n_characters) {
    std::string text;
    for (size_t i = 0; i < n_characters; ++i) append_utf8(text, scalar());
    return text;
  }

  // Letters of `alphabet`, which may be multi-byte.
  std::string from(const std::vector<std::string>& alphabet, size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += alphabet[below(alphabet.size())];
    return text;
  }

 private:
  std::mt19937_64 engine_;
};

// Timings only mean something in optimized builds without sanitizers.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr bool kTimingCounts = true;
#else
inline constexpr bool kTimingCounts = false;
#endif

template <typename Work>
double seconds(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Runs `work`, which must throw kBadFile, and returns the message.
template <typename Work>
std::string bad_file_message(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::kBadFile) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace synod::text_testing
