// Where an option's value comes from: flag > environment SYNOD_* > configuration file > default.
//
// The file is TOML: keys at the top level apply to every verb that has the option, keys of a table named like
// a verb to that verb alone, and win. Names are the long options' with "-" or "_": `ctx-size = 8192`,
// `[serve]` `port = 9000`. The environment has them in capitals: SYNOD_CTX_SIZE, SYNOD_PORT.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace synod::cli {

// One option as `config show` lists it.
struct Setting {
  std::string name;  // "--port"
  std::string value;
  std::string source;  // "flag", "SYNOD_PORT", "/home/me/.config/synod/config.toml", "default"
};

class Configuration {
 public:
  Configuration() = default;
  // Throws kNotFound, kUsage naming the file, line and key.
  static Configuration from_file(const std::filesystem::path& path);
  static Configuration parse(std::string_view toml, const std::string& file_name);
  // $SYNOD_CONFIG, else $XDG_CONFIG_HOME/synod/config.toml, else ~/.config/synod/config.toml. The last two
  // may be missing.
  static Configuration from_user();
  static std::filesystem::path user_path();

  struct Value {
    std::vector<std::string> words;  // several for an array
    std::string source;
  };
  // The value of an option from the environment or the file; `names` are its long names without dashes.
  std::optional<Value> find(const std::string& verb, const std::vector<std::string>& names) const;
  // Throws kUsage for a key that no option has. `known` are all long names, by verb.
  void check_keys(const std::map<std::string, std::vector<std::string>>& known) const;

  // What the file alone says of an option of exactly this verb ("" = the top level).
  std::optional<Value> stored(const std::string& verb, const std::string& name) const;

 private:
  struct Entry {
    std::string verb;  // "" = every verb
    std::string name;  // with "-"
    std::vector<std::string> words;
    std::string place;  // "config.toml, line 3"
  };
  std::vector<Entry> entries_;
};

// The text of a configuration file with one option set to `value`, or without it (nullopt). `verb` "" is the
// top level. Comments and everything else stay. Throws kUsage for a file that is no TOML, or that spells the
// option in a way that only a person should change (a list over several lines, say).
std::string edited_configuration(const std::string& toml, const std::string& file_name,
                                 const std::string& verb, const std::string& name,
                                 const std::optional<std::string>& value);

// "ctx_size" -> "ctx-size"
std::string dashed(std::string_view key);
// "ctx-size" -> "SYNOD_CTX_SIZE"
std::string environment_name(std::string_view option);

}  // namespace synod::cli
