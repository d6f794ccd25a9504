// The one exception of the project. Kinds map to exit codes and HTTP statuses.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace synod {

class Error : public std::runtime_error {
 public:
  enum class Kind {
    kFailure,   // exit 1: anything not named below
    kUsage,     // exit 2: a bad option, request or argument
    kBadFile,   // exit 3: a model file that is damaged, hostile or not supported
    kNoMemory,  // exit 4: does not fit in memory
    kNotFound,  // exit 5: file or model not found
    kNumeric,   // exit 1: non-finite scores, ids out of range; the step was not committed
  };

  Error(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

// Process exit code of an error (design 3.3).
int exit_code(Error::Kind kind);

template <typename... Args>
[[noreturn]] void fail(Error::Kind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void bad_file(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Error::Kind::kBadFile, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace synod

// For our own mistakes, never for input.
#define SYNOD_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::synod::assert_failed(#expression, __FILE__, __LINE__))
