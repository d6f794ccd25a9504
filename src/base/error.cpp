#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace synod {

int exit_code(Error::Kind kind) {
  switch (kind) {
    case Error::Kind::kUsage:
      return 2;
    case Error::Kind::kBadFile:
      return 3;
    case Error::Kind::kNoMemory:
      return 4;
    case Error::Kind::kNotFound:
      return 5;
    case Error::Kind::kFailure:
    case Error::Kind::kNumeric:
      return 1;
  }
  return 1;
}

void assert_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "synod: internal error: %s does not hold (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace synod
