// Jinja templates, as far as the chat templates of model files need them: the published environment (Hugging
// Face's immutable sandbox with trim_blocks and lstrip_blocks, `break`, `continue` and `generation`), without
// inheritance and imports.
//
// A template is hostile: it cannot reach anything but its variables, and every render is bounded in steps,
// depth and output. Results carry the origin of each byte (text.h): what the template wrote is markup, what
// came in variables is foreign unless the caller says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/text.h"
#include "text/jinja/value.h"

namespace synod::jinja {

struct Whitespace {
  bool trim_blocks = true;
  bool lstrip_blocks = true;
};

struct Limits {
  int64_t max_steps = 4'000'000;       // expressions and statements, and 1 per 64 bytes or item handled
  int max_depth = 1000;                // of nested expressions, statements and calls while rendering
  int max_source_depth = 400;          // of nested expressions and blocks in the template's text
  size_t max_output_bytes = 64 << 20;  // of the result and of every string on the way
  size_t max_source_bytes = 4 << 20;
};

struct Variable {
  std::string name;
  Value value;
};

// A value from JSON (at most 256 levels deep; kUsage otherwise); all strings in it, keys too, get `origin`.
Value from_json(const nlohmann::ordered_json& json, Origin origin);

class Template {
 public:
  // Throws kBadFile with the line for what is no template or not supported; `source_name` stands in messages.
  explicit Template(std::string_view source, std::string source_name = "chat template",
                    const Whitespace& whitespace = {}, const Limits& limits = {});
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Throws kUsage for what the template refuses (raise_exception), cannot do, or when a limit is reached.
  // Safe to call from several threads.
  Text render(const std::vector<Variable>& variables) const;
  // The clock of strftime_now, in seconds since 1970 (UTC); for tests.
  void set_clock(std::function<int64_t()> clock);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod::jinja
