#include "cli/configuration.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
// Only here: the header is large.
#include <toml++/toml.h>

#include "base/buffer.h"
#include "base/error.h"

namespace synod::cli {
namespace {

std::string word_of(const toml::node& node, const std::string& place, std::string_view key) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
  if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
  fail(Error::Kind::kUsage, "{}: {}: expected a string, a number, true or false", place, key);
}

}  // namespace

std::string dashed(std::string_view key) {
  std::string name(key);
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string environment_name(std::string_view option) {
  std::string name = "SYNOD_";
  for (const char c : option)
    name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

Configuration Configuration::parse(std::string_view text, const std::string& file_name) {
  Configuration result;
  toml::table table;
  try {
    table = toml::parse(text, file_name);
  } catch (const toml::parse_error& error) {
    fail(Error::Kind::kUsage, "{}, line {}: {}", file_name, error.source().begin.line,
         std::string(error.description()));
  }
  const auto place_of = [&](const toml::node& node) {
    return fmt::format("{}, line {}", file_name, node.source().begin.line);
  };
  const auto add = [&](const std::string& verb, std::string_view key, const toml::node& node) {
    Entry entry{verb, dashed(key), {}, place_of(node)};
    if (const auto* array = node.as_array()) {
      for (const auto& item : *array) entry.words.push_back(word_of(item, entry.place, key));
    } else {
      entry.words.push_back(word_of(node, entry.place, key));
    }
    result.entries_.push_back(std::move(entry));
  };
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (const auto* inner = node.as_table()) {
      for (const auto& [inner_key, inner_node] : *inner) add(name, inner_key.str(), inner_node);
    } else {
      add("", name, node);
    }
  }
  return result;
}

Configuration Configuration::from_file(const std::filesystem::path& path) {
  return parse(read_text_file(path), path.string());
}

std::filesystem::path Configuration::user_path() {
  if (const char* given = std::getenv("SYNOD_CONFIG"); given != nullptr && *given != '\0') return given;
  if (const char* xdg = std::getenv("XDG_CONFIG_HOME"); xdg != nullptr && *xdg == '/') {
    return std::filesystem::path(xdg) / "synod" / "config.toml";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".config" / "synod" / "config.toml";
}

Configuration Configuration::from_user() {
  const std::filesystem::path path = user_path();
  const char* given = std::getenv("SYNOD_CONFIG");
  const bool is_asked_for = given != nullptr && *given != '\0';
  std::error_code ignored;
  if (path.empty() || (!is_asked_for && !std::filesystem::exists(path, ignored))) return {};
  return from_file(path);
}

std::optional<Configuration::Value> Configuration::find(const std::string& verb,
                                                        const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    const std::string variable = environment_name(name);
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr && *value != '\0') return Value{{value}, variable};
  }
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.verb != verb && !entry.verb.empty()) continue;
    if (std::find(names.begin(), names.end(), entry.name) == names.end()) continue;
    if (found == nullptr || found->verb.empty()) found = &entry;  // the verb's own table wins
  }
  if (found == nullptr) return std::nullopt;
  return Value{found->words, found->place};
}

std::optional<Configuration::Value> Configuration::stored(const std::string& verb,
                                                          const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.verb == verb && entry.name == name) return Value{entry.words, entry.place};
  }
  return std::nullopt;
}

void Configuration::check_keys(const std::map<std::string, std::vector<std::string>>& known) const {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const Entry& entry : entries_) {
    bool is_known = false;
    if (entry.verb.empty()) {
      for (const auto& [verb, names] : known) is_known = is_known || has(names, entry.name);
    } else {
      const auto it = known.find(entry.verb);
      if (it == known.end())
        fail(Error::Kind::kUsage, "{}: there is no verb \"{}\"", entry.place, entry.verb);
      is_known = has(it->second, entry.name);
    }
    if (!is_known) {
      fail(Error::Kind::kUsage, "{}: {}no option is named \"{}\"", entry.place,
           entry.verb.empty() ? "" : fmt::format("in [{}]: ", entry.verb), entry.name);
    }
  }
}

}  // namespace synod::cli
