// The command line as plain data. Only options.cpp knows the parser library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/configuration.h"
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
  std::optional<double> typical_p;
  std::optional<double> repeat_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> repeat_last_n;
  std::optional<uint64_t> seed;
  std::string grammar, grammar_file, json_schema, json_schema_file;  // at most one of them
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

  // bench
  std::vector<int64_t> bench_prompts = {512};
  std::vector<int64_t> bench_decodes = {64};
  std::vector<int64_t> bench_depths = {0};
  int64_t repetitions = 3;
  std::string bench_format = "md";

  // inspect
  bool plan = false;
  bool list_tensors = false;

  double bandwidth_gb_s = 25.0;

  // convert and quantize
  std::string type = "q8_0";
  std::string quantize_type = "q4_k_m";
  std::string output;
  std::vector<std::string> type_overrides;  // REGEX=TYPE
  std::string output_type;
  std::string embedding_type;
  std::string imatrix;
  std::string split_max_size;
  bool keep_output = false;
  bool pure = false;
  bool quantize_all = false;
  bool allow_requantize = false;
  bool no_receipt = false;
  bool dry_run = false;

  // imatrix and perplexity
  int64_t max_chunks = -1;
  std::vector<std::string> merge_files;
  bool process_output = false;
  std::string kl_base;

  // run, chat and serve: the dialogue format
  bool jinja = false;  // the model's own template instead of the native format
  std::string chat_template, chat_template_file;

  // run, chat and serve: the engine
  int64_t parallel = 32;  // sequences at once
  int64_t max_queued = 256;
  int64_t cache_mib = 0;  // 0 = one full context, at least 256 MiB
  std::string cache_dir;
  int64_t cache_dir_mib = 8192;
  int64_t max_draft = 6;
  int64_t reasoning_budget = -1;
  // serve
  std::string slot_save_path;
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  bool insecure = false;
  std::string tls_certificate, tls_key;
  std::vector<std::string> cors_origins;
  std::vector<std::string> aliases;
  int64_t http_threads = 0;
  int64_t max_connections = 8192;
  int64_t max_body_mib = 16;
  double request_seconds = 0.0;  // 0 = no limit
  double ping_seconds = 15.0;
  double drain_seconds = 30.0;
  std::string log_format = "text";
  bool no_slots = false, no_props = false, no_metrics = false;

  // config
  std::string config_action;
  std::string config_verb = "serve";
  std::string config_key, config_value;  // of set and unset
  std::vector<Setting> settings;         // of config_verb, filled by parse_options
  std::string config_file;               // that was read, or where one would be

  // completions
  std::string shell;

  ModelOptions model_options() const;  // throws kUsage
};

// Parses argv. Returns an exit code when the process should end now (help, version: 0; usage: 2; completions:
// 0), after printing; otherwise fills `options`.
std::optional<int> parse_options(int argc, const char* const* argv, Options& options);

}  // namespace synod::cli
