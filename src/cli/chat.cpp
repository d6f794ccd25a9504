// A conversation in the terminal, with the engine in this process.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "cli/answer.h"
#include "cli/line_editor.h"
#include "cli/verbs.h"

namespace synod::cli {
namespace {

constexpr const char* kHelp =
    "  /help               this list\n"
    "  /system TEXT        set the system text (empty: none) and start again\n"
    "  /reasoning on|off   let the model think before it answers\n"
    "  /temp X             temperature; 0 = always the most likely token\n"
    "  /clear              start again\n"
    "  /undo               forget the last question and its answer\n"
    "  /retry              answer the last question again, with another seed\n"
    "  /exit               leave (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next. Ctrl-C ends an answer; at the prompt, twice, it leaves.\n";

void on_interrupt(int signal) {
  if (g_signal != 0) std::_Exit(128 + signal);
  g_signal = signal;
}

// Without SA_RESTART, so that Ctrl-C at the prompt ends the wait at once.
void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
}

std::filesystem::path history_path() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/') return std::filesystem::path(state) / "synod" / "chat_history";
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".local" / "state" / "synod" / "chat_history";
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

class Conversation {
 public:
  Conversation(const Options& options, EngineBundle& bundle, bool is_terminal)
      : options_(options),
        bundle_(bundle),
        is_terminal_(is_terminal),
        thinks_(options.reasoning == "on"),
        sampling_(bundle.sampling),
        seed_(options.seed.value_or(0)) {
    set_system(options.system);
  }

  void set_system(const std::string& text) {
    messages_.clear();
    if (!text.empty()) messages_.push_back({"system", text, ""});
  }
  void clear() {
    const bool has_system = !messages_.empty() && messages_[0].role == "system";
    messages_.resize(has_system ? 1 : 0);
  }
  bool undo() {
    while (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
    if (messages_.empty() || messages_.back().role != "user") return false;
    messages_.pop_back();
    return true;
  }
  bool retry() {
    while (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
    if (messages_.empty() || messages_.back().role != "user") return false;
    ++seed_;
    answer();
    return true;
  }
  void set_thinks(bool on) { thinks_ = on; }
  void set_temperature(double value) {
    SamplerOptions changed = sampling_;
    changed.temperature = static_cast<float>(value);
    changed.check();
    sampling_ = changed;
  }

  void ask(const std::string& text) {
    messages_.push_back({"user", text, ""});
    try {
      answer();
    } catch (...) {
      messages_.pop_back();  // a question that could not be asked is not part of the conversation
      throw;
    }
  }

 private:
  void answer() {
    GenerationRequest request = chat_request(bundle_, options_, messages_, thinks_);
    request.sampling = sampling_;
    request.sampling.seed = seed_;
    AnswerPrinter printer(is_terminal_, !options_.quiet);
    AnswerEvents events;
    events.output = [&](const OutputEvent& event) { printer.show(event); };
    Answer answer;
    try {
      answer = generate_answer(bundle_, std::move(request), true, events);
    } catch (...) {
      printer.end_line();
      throw;
    }
    printer.end_line();
    show_rates(answer.finished);
    if (g_signal == SIGINT) g_signal = 0;  // it was for the answer, even if that had just ended
    ChatMessage message{"assistant", answer.output.content, answer.output.reasoning};
    for (const ParsedToolCall& call : answer.output.tool_calls)
      message.tool_calls.push_back({"", call.name, call.arguments});
    messages_.push_back(std::move(message));
  }

  void show_rates(const FinishedEvent& finished) const {
    if (options_.quiet || !is_terminal_) return;
    const Usage& u = finished.usage;
    const Timings& t = finished.timings;
    std::fprintf(stderr, "\x1b[2m[%lld tokens at %.1f/s; prompt %lld, %lld of it cached, %.0f ms%s]\x1b[0m\n",
                 static_cast<long long>(u.completion_tokens),
                 server::tokens_per_second(u.completion_tokens, t.decode_seconds),
                 static_cast<long long>(u.prompt_tokens), static_cast<long long>(u.cached_tokens),
                 t.prompt_seconds * 1e3, finished.reason == FinishReason::kCancelled ? "; stopped" : "");
  }

  const Options& options_;
  EngineBundle& bundle_;
  bool is_terminal_;
  bool thinks_;
  SamplerOptions sampling_;
  uint64_t seed_;
  std::vector<ChatMessage> messages_;
};

// False when the conversation is over.
bool run_command(const std::string& line, Conversation& conversation) {
  const size_t blank = line.find(' ');
  const std::string name = line.substr(0, blank);
  const std::string rest = blank == std::string::npos ? "" : trimmed(line.substr(blank));
  const auto say = [](const char* text) { std::fputs(text, stderr); };
  if (name == "/exit" || name == "/quit" || name == "/bye") return false;
  if (name == "/help" || name == "/?") {
    say(kHelp);
  } else if (name == "/system") {
    conversation.set_system(rest);
    say("a new conversation\n");
  } else if (name == "/clear" || name == "/new") {
    conversation.clear();
    say("a new conversation\n");
  } else if (name == "/undo") {
    say(conversation.undo() ? "forgotten\n" : "there is nothing to undo\n");
  } else if (name == "/retry") {
    if (!conversation.retry()) say("there is no question yet\n");
  } else if (name == "/reasoning" && (rest == "on" || rest == "off")) {
    conversation.set_thinks(rest == "on");
  } else if (name == "/temp" && !rest.empty()) {
    char* end = nullptr;
    const double value = std::strtod(rest.c_str(), &end);
    if (*end != '\0') fail(Error::Kind::kUsage, "/temp: expected a number, got \"{}\"", rest);
    conversation.set_temperature(value);
  } else {
    std::fprintf(stderr, "there is no \"%s\" like that; /help shows what there is\n", name.c_str());
  }
  return true;
}

}  // namespace

int chat_verb(const Options& options) {
  const std::unique_ptr<EngineBundle> bundle = load_engine(options);
  LineEditor editor(history_path());
  const bool is_terminal = editor.is_interactive();
  if (is_terminal) {
    catch_interrupts();
    if (!options.quiet) {
      std::fprintf(stderr, "%s; /help shows the commands\n", bundle->loaded.model->info().name.c_str());
    }
  }
  Conversation conversation(options, *bundle, is_terminal);
  bool was_interrupted = false;
  std::string pending;  // lines that ended in a backslash
  while (true) {
    std::optional<std::string> line = editor.read(pending.empty() ? "> " : ". ");
    if (!line) {
      if (g_signal != SIGINT || !is_terminal) break;
      if (std::exchange(was_interrupted, true)) break;
      g_signal = 0;
      pending.clear();
      std::fputs("\n(Ctrl-C again leaves)\n", stderr);
      continue;
    }
    was_interrupted = false;
    if (!line->empty() && line->back() == '\\') {
      line->back() = '\n';
      pending += *line;
      continue;
    }
    const std::string text = std::exchange(pending, "") + *line;
    if (trimmed(text).empty()) continue;
    try {
      if (text.front() == '/') {
        if (!run_command(trimmed(text), conversation)) break;
      } else {
        conversation.ask(text);
      }
    } catch (const Error& error) {
      if (!is_terminal) throw;
      log_line(LogLevel::kError, error.what());
    }
    if (g_signal != 0) break;
  }
  return g_signal != 0 ? 128 + g_signal : 0;
}

}  // namespace synod::cli
