// Gemma 4's argument syntax to JSON, byte by byte: {city:<|"|>Oslo<|"|>,days:3} becomes
// {"city":"Oslo","days":3}. Strings are bare text between delimiter tokens, keys are bare. Also taken,
// because models write it: blanks after commas and colons, keys and strings in JSON's own quotes,
// None/True/False, a comma before a closing bracket, and bare words as strings.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace synod::gemma4 {

class ArgumentReader {
 public:
  enum class Status { kMore, kDone, kFailed };

  explicit ArgumentReader(int max_depth) : max_depth_(max_depth) {}

  // The next byte, the first one after the opening brace; kQuote for the delimiter token. Appends JSON to
  // `json`. Nothing more is read after kDone (the object is closed) or kFailed.
  Status take(unsigned char byte, std::string& json);
  // The JSON of the opening brace, which the caller has seen.
  void open(std::string& json);
  bool in_string() const { return state_ == State::kString || state_ == State::kKeyString; }

  static constexpr unsigned char kQuote = 0xF9;

 private:
  enum class State {
    kKey,          // before or in a bare key
    kKeyString,    // in a delimited key
    kAfterKey,     // a colon must follow
    kValue,        // before a value
    kString,       // in a delimited string
    kPlainString,  // in a string with JSON's quotes
    kPlainEscape,  // after its backslash
    kBare,         // in a number or word
    kAfterValue,   // a comma or a closing bracket must follow
    kDone,
    kFailed,
  };
  struct Level {
    bool is_object;
    bool has_items = false;
    std::unordered_set<std::string> keys = {};  // a repeated key would lose a value
  };

  void key(unsigned char byte, std::string& json);
  void end_key(std::string& json);
  void value(unsigned char byte, std::string& json);
  void end_bare(std::string& json);
  void separator(unsigned char byte, std::string& json);
  void push(bool is_object, std::string& json);
  void comma(std::string& json);

  int max_depth_;
  State state_ = State::kFailed;
  std::vector<Level> levels_;
  std::string text_;  // of a key, a bare value or a string in JSON's quotes
};

}  // namespace synod::gemma4
