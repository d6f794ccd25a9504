// The command line as plain data. Only options.cpp knows the parser library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace synod::cli {

struct Options {
  std::string verb;

  // Everywhere.
  std::string model;  // empty = the bundled demonstration model
  std::string backend = "auto";
  int64_t threads = 0;  // 0 = physical cores within affinity and quota
  bool json = false;
  bool quiet = false;
  bool verbose = false;
  bool no_progress = false;
  bool force = false;  // run even when the memory plan does not fit
  int64_t context_length = 0;
  int64_t chunk = 512;  // tokens per forward call of a prompt
  std::string profile = "m";
  std::string fusion = "auto";
  int64_t fusion_budget_mib = 0;
  int64_t moe_threshold = 0;  // rows per expert from which experts run grouped; 0 = the device's default
  std::string trace_path;
  std::string dump_plan_path;
  bool ops_table = false;

  // run
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string system;
  bool raw = false;
  std::string reasoning = "off";
  int64_t max_tokens = -1;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
  bool warm_up = false;

  // logits
  std::string ids;
  std::string ids_file;
  std::string chunks;
  std::string out;
  bool hidden = false;

  // tokenize
  bool parse_special = false;
  bool decode = false;

  // inspect
  bool plan = false;
  bool list_tensors = false;

  // convert
  std::string type = "q8_0";
  std::string output;

  // completions
  std::string shell;

  ModelOptions model_options() const;  // throws kUsage
};

// Parses argv. Returns an exit code when the process should end now (help, version: 0; usage: 2; completions:
// 0), after printing; otherwise fills `options`.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options);

}  // namespace synod::cli
