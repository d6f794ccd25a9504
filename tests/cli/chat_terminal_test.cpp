// synod chat as people see it: in a terminal, with history, dimmed reasoning and Ctrl-C.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>

#include "temp_folder.h"

namespace synod {
namespace {

using Clock = std::chrono::steady_clock;

// The program in a terminal of its own.
class Terminal {
 public:
  explicit Terminal(const std::filesystem::path& home) {
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    ::setenv("XDG_STATE_HOME", home.c_str(), 1);
    ::setenv("TERM", "xterm", 1);
    ::execl(SYNOD_PROGRAM, SYNOD_PROGRAM, "chat", "--reasoning", "on", "--threads", "1", nullptr);
    ::_exit(127);
  }
  ~Terminal() {
    ::close(fd_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    ASSERT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // What is shown until `text` is, and not again what was returned before. Without it, everything.
  std::string wait_for(const std::string& text) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    size_t at = std::string::npos;
    while ((at = shown_.find(text)) == std::string::npos && Clock::now() < end) {
      if (!read_some()) break;
    }
    EXPECT_NE(at, std::string::npos) << "no " << text << " in " << shown_;
    const size_t cut = at == std::string::npos ? shown_.size() : at + text.size();
    std::string part = shown_.substr(0, cut);
    shown_.erase(0, cut);
    return part;
  }
  // Until `n` bytes more are shown.
  void wait_for_more(size_t n) {
    const auto end = Clock::now() + std::chrono::seconds(60);
    while (shown_.size() < n && Clock::now() < end) read_some();
    EXPECT_GE(shown_.size(), n);
  }
  int exit_code() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  // False when the program has ended.
  bool read_some() {
    pollfd wait{fd_, POLLIN, 0};
    if (::poll(&wait, 1, 100) <= 0) return true;
    char buffer[4096];
    const ssize_t n = ::read(fd_, buffer, sizeof(buffer));
    if (n > 0) shown_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
};

TEST(ChatTerminal, HistoryHelpReasoningRatesAndCtrlC) {
  const test::TempFolder home;
  {
    Terminal t(home.path());
    t.wait_for("> ");
    t.type("/help\r");
    t.wait_for("/retry");
    t.wait_for("> ");
    t.type("Define hope.\r");
    t.wait_for("\x1b[2m");  // reasoning is dimmed
    t.wait_for("\x1b[0m");  // and its end is not
    t.wait_for(" tokens at ");
    t.wait_for("/s; prompt ");
    t.wait_for("> ");
    t.type("\x1b[A\r");  // arrow up: the line before
    t.wait_for("Define hope.");
    t.wait_for(" tokens at ");
    t.wait_for("> ");
    t.type("\x03");
    t.wait_for("(Ctrl-C again leaves)");
    t.type("/exit\r");
    EXPECT_EQ(t.exit_code(), 0);
  }
  Terminal again(home.path());  // history outlives the program
  again.wait_for("> ");
  again.type("\x1b[A\x1b[A\r");
  again.wait_for("Define hope.");
  again.wait_for(" tokens at ");
  again.wait_for("> ");
  again.type("\x04");  // Ctrl-D
  EXPECT_EQ(again.exit_code(), 0);
}

TEST(ChatTerminal, CtrlCEndsAnAnswerAndTheConversationGoesOn) {
  const test::TempFolder home;
  Terminal t(home.path());
  t.wait_for("> ");
  t.type("/temp 20\r");  // words without end
  t.wait_for("> ");
  t.type("Define hope.\r");
  t.wait_for("hope.\r\n");
  t.wait_for_more(8);  // the answer has begun: earlier, the terminal would drop the line with the Ctrl-C
  t.type("\x03");
  t.wait_for("; stopped]");
  t.wait_for("> ");
  t.type("/clear\r");
  t.wait_for("a new conversation");
  t.type("/temp 0\r");
  t.type("Define sea.\r");
  t.wait_for(" tokens at ");
  t.type("/exit\r");
  EXPECT_EQ(t.exit_code(), 0);
}

}  // namespace
}  // namespace synod
