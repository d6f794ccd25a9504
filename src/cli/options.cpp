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
      {"-sys", "--system-prompt"}, {"-rea", "--reasoning"}, {"-ub", "--chunk"}};
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

void add_run(CLI::App& app, Options& o) {
  add_model(app, o, false);
  app.add_option("-p,--prompt", o.prompt, "the prompt; without -p and -f it is read from stdin");
  app.add_option("-f,--file", o.prompt_file, "read the prompt from a file");
  app.add_option("--system-prompt,--system", o.system, "system text (also -sys)");
  app.add_flag("--raw", o.raw, "no dialogue format: continue the prompt as text");
  app.add_option("--reasoning", o.reasoning, "let the model think before it answers")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  app.add_option("-n,--predict,--n-predict", o.max_tokens,
                 "most tokens to generate; -1 = until the model stops")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 31));
  app.add_option("--temp,--temperature", o.temperature, "0 = always the most likely token (default)");
  app.add_option("--top-k", o.top_k, "keep the k most likely tokens; 0 = all");
  app.add_option("--top-p", o.top_p, "keep the most likely tokens of this total probability");
  app.add_option("--min-p", o.min_p, "drop tokens less likely than this share of the most likely");
  app.add_option("-s,--seed", o.seed, "seed of the sampler; default 0");
  app.add_flag("--ignore-eos", o.ignore_eos, "do not stop at end-of-turn tokens");
  app.add_flag("--warm-up,--warmup", o.warm_up, "run one token before timing");
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
  app.add_flag("--plan", o.plan, "memory plan, cache layout and fusion (MODEL may be a bare config.json)");
  app.add_flag("--tensors", o.list_tensors, "list every tensor");
  app.add_option("--type", o.type, "weight type assumed for a bare config.json")->capture_default_str();
  app.add_option("-c,--ctx-size", o.context_length, "context of the plan in tokens")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-b,--chunk", o.chunk, "tokens per forward call")->check(CLI::PositiveNumber);
  app.add_option("--fusion", o.fusion)->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--profile", o.profile)->check(CLI::IsMember({"m", "q"}));
  add_common(app, o);
}

void add_convert(CLI::App& app, Options& o) {
  add_model(app, o, true);
  app.add_option("OUTPUT,-o,--outfile", o.output, "the GGUF file to write")->required();
  app.add_option("--type,--outtype", o.type, "f32, f16, bf16 or q8_0")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}))
      ->capture_default_str();
  app.add_flag("--force", o.force, "replace an existing file");
  add_common(app, o);
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
  constexpr std::array<Verb, 6> kVerbs = {{
      {"run", "answer one prompt", add_run},
      {"logits", "logits of given token ids, for tests and bug reports", add_logits},
      {"tokenize", "text to token ids, or back", add_tokenize},
      {"inspect", "metadata, tensors and memory plan of a model", add_inspect},
      {"convert", "Hugging Face folder to GGUF", add_convert},
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
