// Lines from a terminal with editing and history (libedit, where the build has it), or from a pipe.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace synod::cli {

class LineEditor {
 public:
  // `history` is read now and written by the destructor; empty = none.
  explicit LineEditor(std::filesystem::path history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  bool is_interactive() const;  // stdin and stdout are terminals
  // Without its line end. nullopt at the end of the input, or when a signal interrupted the wait.
  std::optional<std::string> read(const std::string& prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace synod::cli
