#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/verbs.h"

namespace synod::cli {

namespace {

// Keys are never shown.
bool is_secret(const Setting& setting) { return setting.name == "--api-key"; }

}  // namespace

int config_verb(const Options& options) {
  if (options.json) {
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
    return 0;
  }
  std::printf("# options of `synod %s`; file: %s\n", options.config_verb.c_str(),
              options.config_file.c_str());
  size_t width = 0;
  for (const Setting& s : options.settings) width = std::max(width, s.name.size());
  for (const Setting& s : options.settings) {
    const std::string value = s.value.empty() ? "-" : is_secret(s) ? "(hidden)" : s.value;
    std::printf("%-*s  %-20s  %s\n", static_cast<int>(width), s.name.c_str(), value.c_str(),
                s.source.c_str());
  }
  return 0;
}

}  // namespace synod::cli
