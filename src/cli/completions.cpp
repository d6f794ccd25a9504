#include "cli/completions.h"

#include <fmt/format.h>

namespace synod::cli {
namespace {

// Help texts go into single-quoted shell words (and zsh's [..] and : are its own syntax).
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != '\'' && c != '[' && c != ']' && c != ':' && c != '`' && c != '\\') out += c;
  }
  return out;
}

std::string words(const VerbCompletion& verb) {
  std::string out;
  for (const OptionCompletion& option : verb.options) out += option.name + " ";
  return out;
}

std::string bash(const std::vector<VerbCompletion>& verbs) {
  std::string names, cases;
  for (const VerbCompletion& verb : verbs) {
    names += verb.name + " ";
    cases += fmt::format("    {}) options=\"{}\" ;;\n", verb.name, words(verb));
  }
  return fmt::format(R"(_synod() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" options=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{}--help --version" -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{}  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
    *) COMPREPLY=($(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _synod synod
)",
                     names, cases);
}

std::string zsh(const std::vector<VerbCompletion>& verbs) {
  std::string list, cases;
  for (const VerbCompletion& verb : verbs) {
    list += fmt::format("    '{}:{}'\n", verb.name, plain(verb.help));
    cases += fmt::format("    {}) _arguments -s", verb.name);
    for (const OptionCompletion& o : verb.options) {
      cases += fmt::format(" '{}[{}]{}'", o.name, plain(o.help), o.takes_value ? ":value:_files" : "");
    }
    cases += " '*:file:_files' ;;\n";
  }
  return fmt::format(R"(#compdef synod
_synod() {{
  local -a verbs
  verbs=(
{})
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{}  esac
}}
compdef _synod synod
)",
                     list, cases);
}

std::string fish(const std::vector<VerbCompletion>& verbs) {
  std::string out;
  for (const VerbCompletion& verb : verbs) {
    out += fmt::format("complete -c synod -n __fish_use_subcommand -a {} -d '{}'\n", verb.name,
                       plain(verb.help));
    for (const OptionCompletion& o : verb.options) {
      out += fmt::format("complete -c synod -n '__fish_seen_subcommand_from {}' -l {} -d '{}'{}\n", verb.name,
                         o.name.substr(2), plain(o.help), o.takes_value ? " -r" : "");
    }
  }
  return out;
}

}  // namespace

std::string completion_script(std::string_view shell, const std::vector<VerbCompletion>& verbs) {
  if (shell == "zsh") return zsh(verbs);
  if (shell == "fish") return fish(verbs);
  return bash(verbs);
}

}  // namespace synod::cli
