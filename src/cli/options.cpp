#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <map>

#include "base/error.h"
#include "cli/completions.h"

namespace synod::cli {
namespace {

// llama.cpp spells some options with one dash and several letters; the parser library knows only one letter
// there.
const std::map<std::string_view, std::string_view>& one_dash_aliases() {
  static const std::map<std::string_view, std::string_view> kAliases = {
      {"-sys", "--system-prompt"}, {"-np", "--parallel"}, {"-rea", "--reasoning"}, {"-ub", "--chunk"}};
  return kAliases;
}

void add_model(CLI::App& app, Options& o, bool required) {
  auto* positional = app.add_option("MODEL,-m,--model", o.model,
                                    "a .gguf file, or a folder with safetensors and config.json");
  if (required) positional->required();
}

void add_common(CLI::App& app, Options& o) {
  app.add_flag("--json", o.json, "print one JSON object");
  app.add_flag("-q,--quiet", o.quiet, "log errors only");
  app.add_flag("-v,--verbose", o.verbose, "log details");
  app.add_flag("--no-progress", o.no_progress, "no progress bar");
}

void add_engine(CLI::App& app, Options& o) {
  app.add_option("--backend", o.backend, "what runs the model")
      ->check(CLI::IsMember({"auto", "ref", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("-t,--threads", o.threads, "threads; 0 = physical cores")->check(CLI::Range(0, 1024));
  app.add_option("-c,--ctx-size", o.context_length, "context in tokens; 0 = the model's")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-b,--chunk,--batch-size,--ubatch-size", o.chunk, "prompt tokens per forward call")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--profile", o.profile,
                 "arithmetic of DeepSeek-V4: m = pure mathematics, q = with the rounding it was trained with")
      ->check(CLI::IsMember({"m", "q"}))
      ->capture_default_str();
  app.add_option("--fusion", o.fusion, "run projections of one input as one operation")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--fusion-budget", o.fusion_budget_mib, "MiB that fusion may add to memory")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--moe-threshold", o.moe_threshold,
                 "rows per expert from which experts run grouped; 0 = measured")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--trace", o.trace_path, "write a Chrome trace of all operations to this file");
  app.add_option("--dump-plan", o.dump_plan_path,
                 "write the operations of one decode step (JSON, or DOT for .dot)");
  app.add_flag("--ops", o.ops_table, "print time per model part and operation to stderr");
  app.add_flag("--force", o.force, "run even when the memory plan does not fit");
}

void add_sampling(CLI::App& app, Options& o) {
  app.add_option("--temp,--temperature", o.temperature, "0 = always the most likely token");
  app.add_option("--top-k", o.top_k, "keep the k most likely tokens; 0 = all");
  app.add_option("--top-p", o.top_p, "keep the most likely tokens of this total probability");
  app.add_option("--min-p", o.min_p, "drop tokens less likely than this share of the most likely");
  app.add_option("--typical", o.typical_p, "keep the most typical tokens of this total probability");
  app.add_option("--repeat-penalty", o.repeat_penalty,
                 "above 1: tokens of the last --repeat-last-n are less likely");
  app.add_option("--repeat-last-n", o.repeat_last_n, "tokens that --repeat-penalty looks at; -1 = all");
  app.add_option("--presence-penalty", o.presence_penalty, "taken from the logit of tokens of the answer");
  app.add_option("--frequency-penalty", o.frequency_penalty, "the same, as often as the token came");
  app.add_option("--reasoning", o.reasoning,
                 "let the model think before it answers (serve: where a request does not say)")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("--reasoning-budget", o.reasoning_budget, "most tokens of reasoning; -1 = no limit")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 31))
      ->capture_default_str();
}

void add_serving_engine(CLI::App& app, Options& o) {
  app.add_option("--cache-ram", o.cache_mib, "MiB of cache for all sequences; 0 = one full context")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--cache-dir", o.cache_dir, "folder that keeps prefixes over a restart");
  app.add_option("--cache-dir-size", o.cache_dir_mib, "MiB of that folder")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--draft-max", o.max_draft, "tokens per n-gram draft; 0 = no speculation")
      ->check(CLI::Range(0, 8))
      ->capture_default_str();
}

void add_dialogue(CLI::App& app, Options& o) {
  app.add_flag("--jinja", o.jinja, "the chat template of the model's file instead of the native format");
  app.add_option("--chat-template", o.chat_template, "a chat template (Jinja) to use instead");
  app.add_option("--chat-template-file", o.chat_template_file, "the same from a file");
}

void add_run(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("-p,--prompt", o.prompt, "the prompt; without -p and -f it is read from stdin");
  app.add_option("-f,--file", o.prompt_file, "read the prompt from a file");
  app.add_option("--system-prompt,--system", o.system, "system text (also -sys)");
  app.add_flag("--raw", o.raw, "no dialogue format: continue the prompt as text");
  app.add_option("-n,--predict,--n-predict", o.max_tokens,
                 "most tokens to generate; -1 = until the model stops")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 31));
  app.add_option("-s,--seed", o.seed, "seed of the sampler; default 0");
  app.add_option("--grammar", o.grammar, "the answer follows this grammar (GBNF)");
  app.add_option("--grammar-file", o.grammar_file, "the same from a file");
  app.add_option("-j,--json-schema", o.json_schema, "the answer is JSON of this schema; {} = any object");
  app.add_option("--json-schema-file", o.json_schema_file, "the same from a file");
  app.add_flag("--ignore-eos", o.ignore_eos, "do not stop at end-of-turn tokens");
  app.add_flag("--warm-up,--warmup", o.warm_up, "run one token before timing");
  add_serving_engine(app, o);
  add_sampling(app, o);
  add_dialogue(app, o);
  add_engine(app, o);
  add_common(app, o);
}

void add_bench(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("-p,--n-prompt", o.bench_prompts, "prefill tests: tokens each, e.g. 128,512; 0 = none")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-n,--n-gen", o.bench_decodes, "decode tests: tokens each; 0 = none")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-d,--n-depth", o.bench_depths, "tokens in the cache before a test, e.g. 0,2048")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-r,--repetitions", o.repetitions, "repetitions of each test")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-o,--output", o.bench_format, "md or json")
      ->check(CLI::IsMember({"md", "json"}))
      ->capture_default_str();
  add_engine(app, o);
  add_common(app, o);
}

void add_logits(CLI::App& app, Options& o) {
  add_model(app, o, false);
  auto* source = app.add_option_group("ids");
  source->add_option("--ids", o.ids, "token ids, separated by commas or blanks");
  source->add_option("--ids-file", o.ids_file, "file with token ids");
  source->require_option(1);
  app.add_option("--chunks", o.chunks,
                 "how the ids are cut, e.g. 5,1,7; the last size repeats; default: one call");
  app.add_option("-o,--out", o.out, "result: safetensors with `logits` f32 [n, vocabulary]")->required();
  app.add_flag("--hidden", o.hidden,
               "also `hidden.N`: embedding output (0), each layer's, after the final norm");
  add_engine(app, o);
  add_common(app, o);
}

void add_tokenize(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("-p,--prompt", o.prompt, "text; without -p and -f it is read from stdin");
  app.add_option("-f,--file", o.prompt_file, "read the text from a file");
  app.add_flag("--parse-special", o.parse_special, "match special tokens in the text");
  app.add_flag("--decode", o.decode, "the input is ids; print their text");
  app.add_option("--ids", o.ids, "with --decode: the ids");
  add_common(app, o);
}

void add_inspect(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_flag(
      "--plan", o.plan,
      "types and sizes, bytes read per token, memory, cache and fusion (MODEL may be a bare config.json)");
  app.add_option("--bandwidth", o.bandwidth_gb_s, "memory bandwidth in GB/s for the predicted decode rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--tensors", o.list_tensors, "list every tensor");
  app.add_option("--type", o.type, "type or mix assumed for a bare config.json")->capture_default_str();
  app.add_option("--tensor-type", o.type_overrides, "REGEX=TYPE, as in quantize")->allow_extra_args(false);
  app.add_option("-c,--ctx-size", o.context_length, "context of the plan in tokens")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-b,--chunk", o.chunk, "tokens per forward call")->check(CLI::PositiveNumber);
  app.add_option("--fusion", o.fusion)->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--profile", o.profile)->check(CLI::IsMember({"m", "q"}));
  add_common(app, o);
}

void add_types(CLI::App& app, Options& o) {
  app.add_option("--tensor-type", o.type_overrides,
                 "REGEX=TYPE: tensors whose names match get this type; may be given again")
      ->allow_extra_args(false);
  app.add_option("--output-tensor-type", o.output_type,
                 "type of the output matrix instead of the mix's choice");
  app.add_option("--token-embedding-type", o.embedding_type,
                 "type of the embedding instead of the mix's choice");
  app.add_flag("--leave-output-tensor", o.keep_output, "keep output.weight as it is stored");
  app.add_flag("--pure", o.pure, "one type for every matrix");
  app.add_flag("--quantize-all", o.quantize_all,
               "also quantize hyper-connections and position tables, as llama.cpp's tool does");
  app.add_option("--imatrix", o.imatrix, "importance data (see the imatrix verb)");
}

void add_output(CLI::App& app, Options& o) {
  add_types(app, o);
  app.add_option("-t,--threads", o.threads, "threads; 0 = all")->check(CLI::Range(0, 1024));
  app.add_option("--split-max-size", o.split_max_size,
                 "tensor data per file, e.g. 40G or 500M: NAME-00001-of-0000N.gguf");
  app.add_flag("--no-receipt", o.no_receipt,
               "do not write OUTPUT.receipt.json (hashes of inputs and outputs)");
  app.add_flag("--dry-run", o.dry_run, "print types and sizes, write nothing");
  app.add_flag("--force", o.force, "replace an existing file");
  add_common(app, o);
}

void add_convert(CLI::App& app, Options& o) {
  add_model(app, o, true);
  app.add_option("OUTPUT,-o,--outfile", o.output, "the GGUF file to write")->required();
  app.add_option("--type,--outtype", o.type, "f32, f16, bf16, q8_0 or any mix of `quantize`")
      ->capture_default_str();
  add_output(app, o);
}

void add_quantize(CLI::App& app, Options& o) {
  add_model(app, o, true);
  app.add_option("OUTPUT,-o,--outfile", o.output, "the GGUF file to write")->required();
  app.add_option("TYPE,--type,--outtype", o.quantize_type,
                 "mix, e.g. q8_0, q4_k_m, iq2_xxs (docs/quantization.md)")
      ->capture_default_str();
  app.add_flag("--allow-requantize", o.allow_requantize, "do not warn when the source is quantized already");
  add_output(app, o);
}

void add_text_chunks(CLI::App& app, Options& o) {
  app.add_option("-f,--file", o.prompt_file, "the text; without it, it is read from stdin");
  app.add_option("--chunks", o.max_chunks, "use only the first N chunks; -1 = all")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
  app.add_flag("--parse-special", o.parse_special, "match special tokens in the text");
}

void add_imatrix(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("-o,--output-file,--out", o.output, "the importance matrix to write (GGUF)")->required();
  app.add_option("--in-file", o.merge_files, "add the sums of this importance matrix; may be given again")
      ->allow_extra_args(false);
  app.add_flag("--process-output", o.process_output, "also for the output matrix");
  add_text_chunks(app, o);
  add_engine(app, o);
  add_common(app, o);
}

void add_perplexity(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("--kl,--kl-divergence", o.kl_base, "also compare with this model's predictions");
  add_text_chunks(app, o);
  add_engine(app, o);
  add_common(app, o);
}

void add_serve(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("--host", o.host, "name or address to listen on")->capture_default_str();
  app.add_option("--port", o.port, "0 = any free one")->check(CLI::Range(0, 65535))->capture_default_str();
  app.add_option("--api-key", o.api_keys, "a key that clients must send; may be given again")
      ->allow_extra_args(false);
  app.add_option("--api-key-file", o.api_key_file, "file with one key per line");
  app.add_flag("--insecure", o.insecure, "allow other machines to connect without a key");
  app.add_option("--ssl-cert-file", o.tls_certificate, "certificate chain (PEM): serve https");
  app.add_option("--ssl-key-file", o.tls_key, "its key (PEM)");
  app.add_option("--cors-origin", o.cors_origins, "web origin that may call, or *; may be given again")
      ->allow_extra_args(false);
  app.add_option("-a,--alias,--served-model-name", o.aliases, "name of the model; may be given again")
      ->allow_extra_args(false);
  app.add_option("--parallel,--max-num-seqs", o.parallel, "sequences that run at once (also -np)")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-queue", o.max_queued, "requests that may wait; more get status 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--timeout", o.request_seconds, "seconds a request may take; 0 = no limit")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--threads-http", o.http_threads, "threads that read requests; 0 = by processors")
      ->check(CLI::Range(0, 256));
  app.add_option("--max-connections", o.max_connections, "open connections")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-body", o.max_body_mib, "MiB of a request")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--sse-ping-interval", o.ping_seconds,
                 "seconds of silence before a stream sends a comment; 0 = never")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--drain-timeout", o.drain_seconds, "seconds that running requests get after SIGTERM")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--log-format", o.log_format, "of the access log")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  add_dialogue(app, o);
  app.add_flag("--no-slots", o.no_slots, "no /slots");
  app.add_flag("--no-props", o.no_props, "no /props");
  app.add_flag("--no-metrics", o.no_metrics, "no /metrics");
  app.add_flag("--metrics")->description("accepted for llama.cpp's sake: metrics are on");
  app.add_flag("--slots")->description("likewise");
  app.add_flag("--props")->description("likewise");
  app.add_option("--slot-save-path", o.slot_save_path,
                 "folder for POST /slots/ID?action=save; without it, refused");
  add_serving_engine(app, o);
  add_sampling(app, o);
  add_engine(app, o);
  add_common(app, o);
}

void add_chat(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("--system-prompt,--system", o.system, "system text (also -sys)");
  app.add_option("-n,--predict,--n-predict", o.max_tokens,
                 "most tokens of an answer; -1 = until the model stops")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 31));
  app.add_option("-s,--seed", o.seed, "seed of the sampler");
  add_dialogue(app, o);
  add_serving_engine(app, o);
  add_sampling(app, o);
  add_engine(app, o);
  add_common(app, o);
}

void add_config(CLI::App& app, Options& o) {
  const auto action = [&](const char* name, const char* help) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->callback([&o, name] { o.config_action = name; });
    return sub;
  };
  app.require_subcommand(1);
  CLI::App* show = action("show", "every option of a verb with its value and where it came from");
  show->add_option("VERB", o.config_verb, "the verb whose options are meant")->capture_default_str();
  show->add_flag("--json", o.json, "print one JSON object");
  constexpr const char* kKey = "an option's long name (every verb that has it), or VERB.NAME";
  CLI::App* set = action("set", "write an option's value to the configuration file");
  set->add_option("KEY", o.config_key, kKey)->required();
  set->add_option("VALUE", o.config_value, "as on the command line; true or false for flags")->required();
  CLI::App* unset = action("unset", "remove an option from the configuration file");
  unset->add_option("KEY", o.config_key, kKey)->required();
}

void add_doctor(CLI::App& app, Options& o) {
  add_model(app, o, false);
  add_common(app, o);
}

bool is_true(const std::string& word) {
  return word == "1" || word == "true" || word == "on" || word == "yes";
}
bool is_false(const std::string& word) {
  return word == "0" || word == "false" || word == "off" || word == "no";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

// Gives the option these words, checked as those of the command line. Flags take true or false. Returns them
// in the option's own spelling; throws kUsage, naming `source`.
std::vector<std::string> checked_words(CLI::Option& option, const std::vector<std::string>& words,
                                       const std::string& source) {
  const bool is_flag = option.get_expected_max() == 0;
  if (is_flag) {
    const std::string word = words.empty() ? std::string() : words.front();
    if (!is_true(word) && !is_false(word)) {
      fail(Error::Kind::kUsage, "{}: {}: expected true or false, got \"{}\"", source,
           option.get_name(false, false), word);
    }
    if (is_false(word)) return {"false"};
  }
  try {
    for (const std::string& word : words) option.add_result(is_flag ? "true" : word);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    fail(Error::Kind::kUsage, "{}: {}", source, error.what());
  }
  return is_flag ? std::vector<std::string>{"true"} : words;
}

// Gives an option that the command line does not name the value of the environment or the file.
Setting apply_configuration(CLI::Option& option, const std::string& verb,
                            const Configuration& configuration) {
  Setting setting{option.get_name(false, false), option.get_default_str(), "default"};
  if (option.count() > 0) {
    setting.value = joined(option.results());
    setting.source = "flag";
    return setting;
  }
  const auto value = configuration.find(verb, option.get_lnames());
  if (!value) return setting;
  const std::vector<std::string> words = checked_words(option, value->words, value->source);
  return {setting.name, joined(words), value->source};
}

// What `config set` and `config unset` are about, checked: the key becomes VERB.NAME or NAME in the option's
// own spelling, a value must be one that the option takes.
void check_configured(CLI::App& app, Options& o) {
  const size_t dot = o.config_key.find('.');
  const std::string verb = dot == std::string::npos ? "" : o.config_key.substr(0, dot);
  const std::string wanted = dashed(dot == std::string::npos ? o.config_key : o.config_key.substr(dot + 1));
  bool is_known = false;
  for (CLI::App* sub : app.get_subcommands({})) {
    if (!verb.empty() && sub->get_name() != verb) continue;
    for (CLI::Option* option : sub->get_options()) {
      const auto& names = option->get_lnames();
      if (std::ranges::find(names, wanted) == names.end() || names.front() == "help") continue;
      is_known = true;
      if (o.config_action == "set") o.config_value = checked_words(*option, {o.config_value}, wanted).front();
    }
  }
  if (!is_known)
    fail(Error::Kind::kUsage, "config {}: no option is named \"{}\"", o.config_action, o.config_key);
  o.config_key = (verb.empty() ? "" : verb + ".") + wanted;
}

void configure(CLI::App& app, Options& o) {
  o.config_file = Configuration::user_path().string();
  if (o.config_action == "set" || o.config_action == "unset") return check_configured(app, o);
  const Configuration configuration = Configuration::from_user();
  std::map<std::string, std::vector<std::string>> known;
  for (const CLI::App* sub : app.get_subcommands({})) {
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& name : option->get_lnames()) known[sub->get_name()].push_back(name);
    }
  }
  configuration.check_keys(known);
  const bool is_show = o.verb == "config";
  if (is_show && known.find(o.config_verb) == known.end()) {
    fail(Error::Kind::kUsage, "config show: there is no verb \"{}\"", o.config_verb);
  }
  CLI::App* sub = app.get_subcommand(is_show ? o.config_verb : o.verb);
  for (CLI::Option* option : sub->get_options()) {
    const auto& names = option->get_lnames();
    if (names.empty() || names.front() == "help") continue;
    const Setting setting = apply_configuration(*option, sub->get_name(), configuration);
    if (is_show) o.settings.push_back(setting);
  }
}

}  // namespace

ModelOptions Options::model_options() const {
  ModelOptions m;
  m.profile = profile == "q" ? Profile::kQ : Profile::kM;
  m.fusion = fusion == "on" ? FusionMode::kOn : fusion == "off" ? FusionMode::kOff : FusionMode::kAuto;
  m.fusion_budget_bytes = fusion_budget_mib << 20;
  return m;
}

std::optional<int> parse_options(int argc, const char* const* argv, Options& o) {
  CLI::App app("synod runs DeepSeek-V4 and Gemma 4 models from GGUF and safetensors files.", "synod");
  app.set_version_flag("--version", "synod " SYNOD_VERSION);
  app.require_subcommand(1);
  app.footer(
      "stdout carries the result, stderr the log. Exit codes: 0 ok, 1 failure, 2 usage, 3 bad or unsupported "
      "model\n"
      "file, 4 does not fit in memory, 5 not found. Example: synod run -p \"Quote Genesis 1:1.\"");
  using Adder = void (*)(CLI::App&, Options&);
  struct Verb {
    const char* name;
    const char* help;
    Adder add;
  };
  constexpr std::array<Verb, 14> kVerbs = {{
      {"run", "answer one prompt", add_run},
      {"chat", "a conversation in the terminal", add_chat},
      {"serve", "HTTP server with the OpenAI, Anthropic and Ollama APIs", add_serve},
      {"bench", "prefill and decode rates, and the share of what the machine can do", add_bench},
      {"logits", "logits of given token ids, for tests and bug reports", add_logits},
      {"tokenize", "text to token ids, or back", add_tokenize},
      {"inspect", "metadata, tensors and memory plan of a model", add_inspect},
      {"convert", "Hugging Face folder to GGUF", add_convert},
      {"quantize", "any model to a smaller GGUF", add_quantize},
      {"imatrix", "importance of each weight column, for quantize", add_imatrix},
      {"perplexity", "how well a model predicts a text, and how far it is from another", add_perplexity},
      {"doctor", "checks this machine and says what to do", add_doctor},
      {"config", "what the options are and where their values come from", add_config},
      {"completions", "print a completion script for bash, zsh or fish",
       [](CLI::App& a, Options& options) {
         a.add_option("SHELL", options.shell, "bash, zsh or fish")
             ->required()
             ->check(CLI::IsMember({"bash", "zsh", "fish"}));
       }},
  }};
  for (const Verb& verb : kVerbs) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.help);
    sub->callback([&o, name = verb.name] { o.verb = name; });
    verb.add(*sub, o);
  }

  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {  // the library takes them last first
    const auto alias = one_dash_aliases().find(argv[i]);
    arguments.emplace_back(alias == one_dash_aliases().end() ? argv[i] : alias->second);
  }
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_code(Error::Kind::kUsage);
  }
  configure(app, o);
  if (o.verb != "completions") return std::nullopt;

  std::vector<VerbCompletion> verbs;
  for (const CLI::App* sub : app.get_subcommands({})) {
    VerbCompletion verb{sub->get_name(), sub->get_description(), {}};
    for (const CLI::Option* option : sub->get_options()) {
      for (const std::string& long_name : option->get_lnames()) {
        verb.options.push_back({"--" + long_name, option->get_description(), option->get_expected_max() > 0});
      }
    }
    verbs.push_back(std::move(verb));
  }
  std::fputs(completion_script(o.shell, verbs).c_str(), stdout);
  return 0;
}

}  // namespace synod::cli
