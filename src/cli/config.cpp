#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "formats/atomic_file.h"

namespace synod::cli {

namespace {

// Keys are never shown.
bool is_secret(const Setting& setting) { return setting.name == "--api-key"; }

void show_json(const Options& options) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Setting& s : options.settings) {
    const bool hide = is_secret(s) && !s.value.empty();
    list.push_back({{"name", s.name}, {"value", hide ? "(hidden)" : s.value}, {"source", s.source}});
  }
  const nlohmann::ordered_json out = {{"schema_version", 1},
                                      {"verb", options.config_verb},
                                      {"file", options.config_file},
                                      {"settings", std::move(list)}};
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void show(const Options& options) {
  if (options.json) return show_json(options);
  std::printf("# options of `synod %s`; file: %s\n", options.config_verb.c_str(),
              options.config_file.c_str());
  size_t width = 0;
  for (const Setting& s : options.settings) width = std::max(width, s.name.size());
  for (const Setting& s : options.settings) {
    const std::string value = s.value.empty() ? "-" : is_secret(s) ? "(hidden)" : s.value;
    std::printf("%-*s  %-20s  %s\n", static_cast<int>(width), s.name.c_str(), value.c_str(),
                s.source.c_str());
  }
}

void edit(const Options& options) {
  namespace fs = std::filesystem;
  const fs::path path = options.config_file;
  if (path.empty()) fail(Error::Kind::kNotFound, "neither SYNOD_CONFIG, XDG_CONFIG_HOME nor HOME is set");
  std::error_code ignored;
  const std::string before = fs::exists(path, ignored) ? read_text_file(path) : "";
  const size_t dot = options.config_key.find('.');
  const std::string verb = dot == std::string::npos ? "" : options.config_key.substr(0, dot);
  const std::string name = options.config_key.substr(dot == std::string::npos ? 0 : dot + 1);
  std::optional<std::string> value;
  if (options.config_action == "set") value = options.config_value;
  const std::string after = edited_configuration(before, path.string(), verb, name, value);
  if (after == before) return log_info("{}: nothing to change", path.string());
  if (path.has_parent_path()) fs::create_directories(path.parent_path());
  const fs::path target = fs::weakly_canonical(path);  // a link stays one
  const bool is_new = !fs::exists(target, ignored);
  const fs::perms mode = is_new ? fs::perms::none : fs::status(target).permissions();
  ::umask(S_IRWXG | S_IRWXO);  // it may hold keys
  AtomicFile file(target);
  file.write(after);
  file.commit();
  if (!is_new) fs::permissions(target, mode);
  log_info("wrote {}", path.string());
}

}  // namespace

int config_verb(const Options& options) {
  if (options.config_action == "show") {
    show(options);
  } else {
    edit(options);
  }
  return 0;
}

}  // namespace synod::cli
