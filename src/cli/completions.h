// Completion scripts for bash, zsh and fish, from the list of verbs and options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace synod::cli {

struct OptionCompletion {
  std::string name;  // "--prompt"
  std::string help;
  bool takes_value = false;
};

struct VerbCompletion {
  std::string name;
  std::string help;
  std::vector<OptionCompletion> options;
};

std::string completion_script(std::string_view shell, const std::vector<VerbCompletion>& verbs);

}  // namespace synod::cli
