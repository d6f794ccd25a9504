// JSON as terms: white space, strings, numbers, literals, any value. The language is the sound part of JSON
// that models write: white space is bounded (so that a model cannot idle in it), surrogates in escapes come
// in pairs, numbers fit a double.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/grammar/builder.h"

namespace synod {

// Characters (code points of the decoded string) of a JSON string, or digits, or items: from min to max.
struct Count {
  uint32_t min = 0;
  int64_t max = -1;  // < 0: unbounded
};

// A decimal bound of a number. `digits` before and after the point, without sign; no leading zeros but one,
// no trailing zeros after the point.
struct DecimalBound {
  bool negative = false;
  std::string whole = "0", fraction;
  bool exclusive = false;
};

class JsonTerms {
 public:
  JsonTerms(GrammarBuilder& builder, const JsonOptions& options);

  Term space();  // optional white space
  Term colon();
  Term comma();  // with white space around
  Term string(Count count);
  Term string_of(Term content);           // quotes around `content`
  Term quoted(std::string_view decoded);  // exactly this string, in its shortest spelling
  Term plain_key_except(
      const std::vector<std::string>& names);  // a key without escapes that is none of these
  Term character();                            // one character inside a string, or its escape
  Term integer();
  Term number();
  Term boolean();
  Term null();
  Term value();
  Term object();
  Term array();

  // Numbers between the bounds, in decimal notation without exponent; `whole_only` for integers. Throws
  // kUsage when the bounds have too many digits.
  Term bounded_number(const std::optional<DecimalBound>& low, const std::optional<DecimalBound>& high,
                      bool whole_only);

  GrammarBuilder& builder() { return b_; }
  static std::string escaped(std::string_view decoded);  // inside of the quotes
  static void append_escaped(std::string& out, char32_t character);

 private:
  struct Digits;
  Term magnitude(const DecimalBound* low, const DecimalBound* high, bool whole_only, bool with_zero);
  Term digits_from(const Digits& digits, size_t position, bool low_tight, bool high_tight);
  Term list(Term open, Term item, Term close);
  Term digit() { return b_.characters({{'0', '9'}}); }

  GrammarBuilder& b_;
  JsonOptions options_;
  std::optional<Term> space_, character_, integer_, number_, value_, object_, array_, any_string_;
};

// A regular expression (the linear-time part of ECMA-262) over the characters of a JSON string, as the
// content between the quotes. `where` begins messages. Throws kUsage for look-around, back-references, word
// borders, property classes.
Term json_pattern(JsonTerms& json, std::string_view pattern, const std::optional<Count>& length,
                  const std::string& where);

}  // namespace synod
