#include "cli/line_editor.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#ifdef SYNOD_LIBEDIT
#include <histedit.h>

#include <cwchar>
#endif

#include "cli/verbs.h"

namespace synod::cli {
namespace {

// The next byte of the input; none at its end, or when a signal came. One that comes between the prompt and
// the wait does not end a read(), nor one that another thread takes: hence poll(), with a limit.
std::optional<char> next_byte() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (g_signal == 0) {
    const int n_ready = ::poll(&input, 1, 100);
    if (n_ready == 0 || (n_ready < 0 && errno == EINTR)) continue;
    char c = 0;
    const ssize_t n = ::read(STDIN_FILENO, &c, 1);  // not stdio, which would go on after a signal
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    return c;
  }
  return std::nullopt;
}

}  // namespace

struct LineEditor::Impl {
  bool is_interactive = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  std::filesystem::path history_path;
  std::string prompt;

#ifdef SYNOD_LIBEDIT
  EditLine* editor = nullptr;
  History* history = nullptr;

  static char* prompt_of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return static_cast<Impl*>(self)->prompt.data();
  }

  // One character in the locale's encoding. Bytes that are none are left out.
  static int read_character(EditLine*, wchar_t* character) {
    std::mbstate_t state{};
    while (const std::optional<char> byte = next_byte()) {
      const size_t n = std::mbrtowc(character, &*byte, 1, &state);
      if (n <= 1) return 1;  // 0: the character is a zero
      if (n == static_cast<size_t>(-1)) state = {};
    }
    return g_signal == 0 ? 0 : -1;
  }

  void open() {
    std::setlocale(LC_CTYPE, "");  // whole characters, not bytes, move the cursor
    editor = el_init("synod", stdin, stdout, stderr);
    history = history_init();
    if (editor == nullptr || history == nullptr) return;
    HistEvent event;
    ::history(history, &event, H_SETSIZE, 1000);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!history_path.empty()) ::history(history, &event, H_LOAD, history_path.c_str());
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, &Impl::prompt_of);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_SIGNAL, 0);
    el_set(editor, EL_GETCFN, &Impl::read_character);
    el_source(editor, nullptr);  // ~/.editrc
  }

  void close() {
    if (history != nullptr && !history_path.empty()) {
      std::error_code ignored;
      std::filesystem::create_directories(history_path.parent_path(), ignored);
      HistEvent event;
      ::history(history, &event, H_SAVE, history_path.c_str());
      std::filesystem::permissions(
          history_path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, ignored);
    }
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
  }

  std::optional<std::string> edit() {
    int length = 0;
    const char* line = el_gets(editor, &length);
    if (line == nullptr || length <= 0) return std::nullopt;
    std::string text(line, static_cast<size_t>(length));
    if (text.back() == '\n') text.pop_back();
    if (text.find_first_not_of(" \t") != std::string::npos) {
      HistEvent event;
      ::history(history, &event, H_ENTER, text.c_str());
    }
    return text;
  }
#endif
};

LineEditor::LineEditor(std::filesystem::path history) : impl_(std::make_unique<Impl>()) {
  impl_->history_path = std::move(history);
#ifdef SYNOD_LIBEDIT
  if (impl_->is_interactive) impl_->open();
#endif
}

LineEditor::~LineEditor() {
#ifdef SYNOD_LIBEDIT
  impl_->close();
#endif
}

bool LineEditor::is_interactive() const { return impl_->is_interactive; }

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  impl_->prompt = prompt;
#ifdef SYNOD_LIBEDIT
  if (impl_->editor != nullptr && impl_->history != nullptr) return impl_->edit();
#endif
  if (impl_->is_interactive) {
    std::fputs(prompt.c_str(), stdout);
    std::fflush(stdout);
  }
  std::string line;
  while (true) {
    const std::optional<char> c = next_byte();
    if (!c && (line.empty() || g_signal != 0)) return std::nullopt;
    if (!c || *c == '\n') return line;
    line += *c;
  }
}

}  // namespace synod::cli
