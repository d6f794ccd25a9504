// Changes one line of a configuration file. The file is a person's: what they wrote around the line stays.
#include <charconv>
#include <vector>

#include "base/error.h"
#include "cli/configuration.h"

namespace synod::cli {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Numbers, true and false as they are, all else as a TOML string.
std::string literal(const std::string& value) {
  if (value == "true" || value == "false") return value;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_number = error == std::errc() && end == value.data() + value.size();
  if (is_number && std::to_string(number) == value) return value;
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      text += fmt::format("\\u{:04X}", byte);
    } else {
      text += c;
    }
  }
  return text + '"';
}

struct Place {
  size_t line = 0;         // of the key, where it is there
  size_t section_end = 0;  // where a new line of the section goes
  bool has_key = false;
  bool has_section = false;
};

Place find_place(const std::vector<std::string>& lines, const std::string& verb, const std::string& name) {
  Place place;
  place.has_section = verb.empty();
  bool is_inside = verb.empty();
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = trimmed(lines[i]);
    if (line.starts_with('[')) {
      is_inside = trimmed(line.substr(1, line.find(']') - 1)) == verb;
      place.has_section = place.has_section || is_inside;
    }
    if (!is_inside) continue;
    if (!line.empty()) place.section_end = i + 1;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || line.starts_with('#') || line.starts_with('[')) continue;
    if (dashed(trimmed(line.substr(0, equals))) != name) continue;
    place.line = i;
    place.has_key = true;
  }
  return place;
}

}  // namespace

std::string edited_configuration(const std::string& toml, const std::string& file_name,
                                 const std::string& verb, const std::string& name,
                                 const std::optional<std::string>& value) {
  if (!Configuration::parse(toml, file_name).stored(verb, name) && !value) return toml;
  std::vector<std::string> lines = lines_of(toml);
  const Place place = find_place(lines, verb, name);
  const auto at = [&](size_t i) { return lines.begin() + static_cast<std::ptrdiff_t>(i); };
  if (!value) {
    if (place.has_key) lines.erase(at(place.line));
  } else {
    const std::string line = name + " = " + literal(*value);
    if (place.has_key) {
      lines[place.line] = line;
    } else if (place.has_section) {
      lines.insert(at(place.section_end), line);
    } else {
      if (!lines.empty()) lines.emplace_back();
      lines.push_back("[" + verb + "]");
      lines.push_back(line);
    }
  }
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  // Whatever spelling TOML allows that was not foreseen above: it shows in what the new text says.
  bool is_right = false;
  try {
    const auto stored = Configuration::parse(text, file_name).stored(verb, name);
    is_right = value ? stored && stored->words == std::vector<std::string>{*value} : !stored;
  } catch (const Error&) {
    is_right = false;
  }
  if (!is_right) {
    fail(Error::Kind::kUsage, "{}: {} is written in a way that only an editor should change", file_name,
         name);
  }
  return text;
}

}  // namespace synod::cli
