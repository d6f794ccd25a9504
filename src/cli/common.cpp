#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>

#include "backends/backends.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "cpu/pool.h"
#include "engine/memory_plan.h"
#include "formats/populate.h"
#include "ops/expert_route.h"

namespace synod::cli {

std::atomic<int> g_signal{0};

std::filesystem::path model_path(const Options& options) {
  namespace fs = std::filesystem;
  if (!options.model.empty()) return options.model;
  constexpr const char* kDemo = "gemma4-mini-q8_0.gguf";
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path places[] = {program / "models" / kDemo,
                             program / ".." / "share" / "synod" / "models" / kDemo,
                             fs::path(SYNOD_SOURCE_MODELS) / kDemo};
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place, ignored)) return place;
    looked += "\n  " + place.lexically_normal().string();
  }
  fail(Error::Kind::kNotFound, "no MODEL was given and the demonstration model is in none of:{}", looked);
}

std::unique_ptr<Backend> make_backend(const Options& options) {
  const char* isa = std::getenv("SYNOD_CPU_ISA");
  return open_backend({.name = options.backend,
                       .n_threads = options.threads,
                       .isa = isa == nullptr ? "" : isa,
                       .moe_threshold = options.moe_threshold,
                       .plugin_dir = {}});
}

std::string read_prompt(const Options& options) {
  if (options.prompt && !options.prompt_file.empty()) {
    fail(Error::Kind::kUsage, "expected one of -p and -f, got both");
  }
  if (options.prompt) return *options.prompt;
  if (!options.prompt_file.empty()) return read_text_file(options.prompt_file);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& what) {
  std::vector<int32_t> ids;
  size_t i = 0;
  constexpr const char* kSeparators = ", \t\r\n";
  while ((i = text.find_first_not_of(kSeparators, i)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(kSeparators, i), text.size());
    const std::string word = text.substr(i, end - i);
    int32_t value = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || stop != word.data() + word.size()) {
      fail(Error::Kind::kUsage, "{}: expected integers separated by commas or blanks, got \"{}\"", what,
           word);
    }
    ids.push_back(value);
    i = end;
  }
  if (ids.empty()) fail(Error::Kind::kUsage, "{}: expected at least one integer, got none", what);
  return ids;
}

std::string describe_routes(const Model& model, std::string_view device, const Options& options) {
  const ModelInfo& i = model.info();
  if (i.n_experts == 0) return "none";
  const auto route = [&](int64_t n_tokens) {
    return name(expert_route({.device = device,
                              .n_tokens = n_tokens,
                              .n_experts = i.n_experts,
                              .n_experts_used = i.n_experts_used,
                              .threshold = options.moe_threshold}));
  };
  return fmt::format("{} for one token, {} for {} tokens", route(1), route(options.chunk), options.chunk);
}

LoadedModel load(const Options& options) {
  LoadedModel loaded;
  loaded.backend = make_backend(options);
  loaded.checkpoint = std::make_unique<Checkpoint>(Checkpoint::open(model_path(options)));
  loaded.model = load_model(*loaded.checkpoint, options.model_options());
  const Model& model = *loaded.model;
  // A context nobody asked for must not refuse a model that runs well with less: pages grow as they are
  // needed.
  constexpr int64_t kModestContext = 4096;
  const int64_t context = options.context_length > 0 ? options.context_length
                                                     : std::min(model.info().context_length, kModestContext);
  const MemoryPlan plan = plan_memory(model, context, options.chunk);
  if (options.verbose) {
    log_info("{}: {} layers, vocabulary {}, weights as {}", model.info().architecture, model.info().n_layers,
             model.info().vocab_size, model.weights().dialect());
    log_info("{}", plan.describe());
    log_info("fusion: {}", model.fusion().summary());
    log_info("backend: {}", loaded.backend->name());
    log_info("experts: {}", describe_routes(model, loaded.backend->name(), options));
  }
  if (place_weights(model, *loaded.backend, plan, options.force)) return loaded;
  const int64_t available = available_memory();
  if (!options.force) require_fits(plan, available);
  // A forced model that does not fit would push itself out of memory again.
  if (loaded.checkpoint->data_bytes() < available) populate(*loaded.checkpoint, cpu::default_threads());
  return loaded;
}

}  // namespace synod::cli
