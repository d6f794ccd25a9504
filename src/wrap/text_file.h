// Reports as text files, and the JSON strings in them.
#pragma once

#include <string>
#include <string_view>

namespace synod {

// `text` as a JSON string with its quotes.
std::string json_string(std::string_view text);
// A JSON number; null when it is not finite.
std::string json_number(double value);
// Throws kFailure naming `path` when it cannot be written.
void write_text_file(const std::string& path, std::string_view text);

}  // namespace synod
