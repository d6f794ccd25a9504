// A model with everything that serving and chatting need around it.
#pragma once

#include <memory>
#include <string>

#include "cli/profiling.h"
#include "cli/verbs.h"
#include "engine/engine.h"
#include "models/dialogue.h"
#include "server/api.h"

namespace synod::cli {

// In the order of construction: the engine is destroyed first.
struct EngineBundle {
  LoadedModel loaded;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dialogue> dialogue;
  std::vector<int32_t> stop_ids;
  SamplerOptions sampling;  // what a request without sampling fields gets
  std::shared_ptr<const Vocabulary> vocabulary;
  double load_seconds = 0.0;
  std::unique_ptr<Profiler> profiler;  // between engine and backend
  std::unique_ptr<Engine> engine;
};

// Loads, plans and warms up; throws what those throw.
std::unique_ptr<EngineBundle> load_engine(const Options& options);

// Flags win over the file's recommendation (generation_config.json, general.sampling.*); greedy when neither
// says anything, so that answers repeat.
SamplerOptions sampling_defaults(const Options& options, const Checkpoint& checkpoint);

// What the server tells about the bundle. Pointers into `bundle`.
server::ServedModel served_model(const EngineBundle& bundle, const Options& options);

}  // namespace synod::cli
