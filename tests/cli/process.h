// Runs the synod program as a child process and collects what it prints.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "temp_folder.h"

namespace synod {

struct ProcessResult {
  int code = -1;
  std::string out;
  std::string err;
};

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// `input` goes to the program's stdin.
inline ProcessResult synod_run(const std::vector<std::string>& arguments, const std::string& input = "") {
  const test::TempFolder dir;
  std::ofstream(dir / "in", std::ios::binary) << input;
  std::string command = quoted(SYNOD_PROGRAM);
  for (const std::string& a : arguments) command += " " + quoted(a);
  command += " <" + quoted((dir / "in").string()) + " >" + quoted((dir / "out").string()) + " 2>" +
             quoted((dir / "err").string());
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_all(dir / "out"),
          read_all(dir / "err")};
}

}  // namespace synod
