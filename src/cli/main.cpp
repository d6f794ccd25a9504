// The synod program: parses the command line, runs the verb, turns errors into exit codes.
#include <csignal>
#include <new>

#include "base/log.h"
#include "cli/verbs.h"

namespace {

using namespace synod;
using namespace synod::cli;

void on_signal(int signal) {
  if (g_signal != 0) std::_Exit(128 + signal);  // the second one does not wait
  g_signal = signal;
}

int dispatch(const Options& options) {
  if (options.verb == "run") return run_verb(options);
  if (options.verb == "bench") return bench_verb(options);
  if (options.verb == "logits") return logits_verb(options);
  if (options.verb == "tokenize") return tokenize_verb(options);
  if (options.verb == "inspect") return inspect_verb(options);
  if (options.verb == "quantize") return quantize_verb(options);
  if (options.verb == "imatrix") return imatrix_verb(options);
  if (options.verb == "perplexity") return perplexity_verb(options);
  if (options.verb == "serve") return serve_verb(options);
  if (options.verb == "chat") return chat_verb(options);
  if (options.verb == "config") return config_verb(options);
  if (options.verb == "doctor") return doctor_verb(options);
  return convert_verb(options);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    if (const auto code = parse_options(argc, argv, options)) return *code;
    set_log_level(options.quiet ? LogLevel::kError : options.verbose ? LogLevel::kDebug : LogLevel::kInfo);
    set_progress_enabled(!options.no_progress && !options.quiet);
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    return dispatch(options);
  } catch (const Error& error) {
    log_line(LogLevel::kError, error.what());
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    log_line(LogLevel::kError, "out of memory");
    return exit_code(Error::Kind::kNoMemory);
  } catch (const std::exception& error) {
    log_line(LogLevel::kError, error.what());
    return exit_code(Error::Kind::kFailure);
  }
}
