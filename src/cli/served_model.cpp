#include "cli/served_model.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/buffer.h"
#include "base/log.h"
#include "models/template_dialogue.h"

namespace synod::cli {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::optional<double> file_number(const Checkpoint& checkpoint, const char* gguf_key, const char* json_key) {
  if (checkpoint.container() == Checkpoint::Container::kGguf) return checkpoint.gguf().find_float(gguf_key);
  const nlohmann::json& config = checkpoint.generation_config();
  if (!config.is_object() || !config.contains(json_key) || !config[json_key].is_number()) return std::nullopt;
  return config[json_key].get<double>();
}

int64_t parameter_count(const Checkpoint& checkpoint) {
  int64_t n = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) n += tensor.size();
  return n;
}

// The user's template, "" without one.
std::string own_template(const Options& options) {
  if (options.chat_template.empty() && options.chat_template_file.empty()) return "";
  if (!options.chat_template.empty() && !options.chat_template_file.empty()) {
    fail(Error::Kind::kUsage, "expected one of --chat-template and --chat-template-file, got both");
  }
  const bool is_file = !options.chat_template_file.empty();
  std::string text = is_file ? read_text_file(options.chat_template_file) : options.chat_template;
  if (text.find('{') == std::string::npos) {
    fail(Error::Kind::kUsage,
         "--chat-template{}: expected a Jinja template, got text without any {{{{ or {{%",
         is_file ? "-file" : "");
  }
  return text;
}

std::unique_ptr<Dialogue> dialogue(const Options& options, const LoadedModel& loaded,
                                   const Tokenizer& tokenizer) {
  return choose_dialogue(*loaded.checkpoint, loaded.model->dialogue(), tokenizer,
                         options.jinja ? DialogueSource::kTemplate : DialogueSource::kNative,
                         own_template(options));
}

// Touches the weights and what the backend builds at its first step; leaves nothing in the cache.
void warm_up(Engine& engine) {
  GenerationRequest request;
  request.prompt = {0};
  request.max_tokens = 1;
  request.cache_prompt = false;
  engine.generate(std::move(request));
}

}  // namespace

SamplerOptions sampling_defaults(const Options& options, const Checkpoint& checkpoint) {
  SamplerOptions s;
  const auto take = [&](const char* gguf_key, const char* json_key, auto& value) {
    if (const auto found = file_number(checkpoint, gguf_key, json_key)) {
      value = static_cast<std::decay_t<decltype(value)>>(*found);
    }
  };
  take("general.sampling.temp", "temperature", s.temperature);
  take("general.sampling.top_k", "top_k", s.top_k);
  take("general.sampling.top_p", "top_p", s.top_p);
  take("general.sampling.min_p", "min_p", s.min_p);
  const auto set = [](const auto& flag, auto& value) {
    if (flag) value = static_cast<std::decay_t<decltype(value)>>(*flag);
  };
  set(options.temperature, s.temperature);
  set(options.top_k, s.top_k);
  set(options.top_p, s.top_p);
  set(options.min_p, s.min_p);
  set(options.typical_p, s.typical_p);
  set(options.repeat_penalty, s.repetition_penalty);
  set(options.repeat_last_n, s.repeat_last_n);
  set(options.presence_penalty, s.presence_penalty);
  set(options.frequency_penalty, s.frequency_penalty);
  s.check();
  return s;
}

std::unique_ptr<EngineBundle> load_engine(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  auto bundle = std::make_unique<EngineBundle>();
  bundle->loaded = load(options);
  const LoadedModel& loaded = bundle->loaded;
  bundle->tokenizer = std::make_unique<Tokenizer>(load_tokenizer(*loaded.checkpoint));
  bundle->dialogue = dialogue(options, loaded, *bundle->tokenizer);
  bundle->stop_ids = stop_ids(*loaded.checkpoint, *bundle->tokenizer, *bundle->dialogue);
  bundle->sampling = sampling_defaults(options, *loaded.checkpoint);
  bundle->vocabulary = Vocabulary::from_tokenizer(*bundle->tokenizer, bundle->stop_ids);
  EngineOptions engine;
  engine.context_length = options.context_length;
  engine.max_sequences = options.parallel;
  engine.max_queued = options.max_queued;
  engine.step_tokens = options.chunk;
  engine.cache_bytes = options.cache_mib << 20;
  engine.stop_ids = bundle->stop_ids;
  engine.suppress = suppressed_ids(*loaded.checkpoint, *bundle->tokenizer);
  engine.max_draft = options.max_draft;
  engine.cache_dir = options.cache_dir;
  engine.cache_dir_bytes = options.cache_dir_mib << 20;
  bundle->profiler = std::make_unique<Profiler>(options, *loaded.model, *loaded.backend);
  bundle->engine =
      std::make_unique<Engine>(*loaded.model, bundle->profiler->backend(), *bundle->tokenizer, engine);
  if (options.warm_up) warm_up(*bundle->engine);
  bundle->load_seconds = seconds_since(start);
  return bundle;
}

server::ServedModel served_model(const EngineBundle& bundle, const Options& options) {
  const Checkpoint& checkpoint = *bundle.loaded.checkpoint;
  server::ServedModel m;
  m.info = bundle.loaded.model->info();
  m.path = checkpoint.path().string();
  const std::filesystem::path path = checkpoint.path();
  const std::string stem = path.has_stem() ? path.stem().string() : path.parent_path().filename().string();
  m.aliases = {m.path, path.filename().string(), stem, m.info.name};
  m.aliases.insert(m.aliases.end(), options.aliases.begin(), options.aliases.end());
  m.id = !options.aliases.empty() ? options.aliases.front() : !m.info.name.empty() ? m.info.name : stem;
  const auto totals = bundle.loaded.model->weights().totals();
  m.quantization = totals.empty() ? "" : totals.front().type;
  std::transform(m.quantization.begin(), m.quantization.end(), m.quantization.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  m.family = m.info.architecture;
  const std::string own = own_template(options);
  m.chat_template = own.empty() ? checkpoint.chat_template().value_or("") : own;
  m.file_bytes = checkpoint.data_bytes();
  m.n_parameters = parameter_count(checkpoint);
  m.created = server::unix_seconds();
  m.load_seconds = bundle.load_seconds;
  m.context_length = bundle.engine->options().context_length;
  m.max_choices = bundle.engine->options().max_sequences;
  m.tokenizer = bundle.tokenizer.get();
  m.dialogue = bundle.dialogue.get();
  m.vocabulary = bundle.vocabulary;
  m.sampling = bundle.sampling;
  m.thinking = options.reasoning == "on";
  m.reasoning_budget = options.reasoning_budget;
  m.fusion = bundle.loaded.model->fusion().summary();
  return m;
}

}  // namespace synod::cli
