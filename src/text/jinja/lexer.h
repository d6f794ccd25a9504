// Template text to tokens, with Jinja's rules for white space: "-" strips, "+" keeps, and, as Hugging Face
// sets them, trim_blocks (the newline after a block or comment goes) and lstrip_blocks (so does the blank
// space before one that begins a line).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/template.h"

namespace synod::jinja {

struct Token {
  enum class Kind {
    kData,         // template text, `text` holds it
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kName,
    kString,  // `text` unescaped
    kInteger,
    kFloat,
    kOperator,  // `text` holds it: + - * ** / // % ~ | . : , = == != < <= > >= ( ) [ ] { }
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;  // from 1
};

// Throws kBadFile naming the line.
std::vector<Token> tokenize(std::string_view source, const Whitespace& whitespace);

[[noreturn]] void syntax_error(int line, const std::string& message);

}  // namespace synod::jinja
