// What the public objects hold.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "models/dialogue.h"
#include "models/model.h"
#include "synod/synod.hpp"

namespace synod::api {

[[noreturn]] void rethrow_as_public();  // inside a handler

// Runs `work` and turns the project's errors into the public one.
template <typename Work>
auto translated(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    rethrow_as_public();
  }
}

struct Model::Impl {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<synod::Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Dialogue> dialogue;
  std::unique_ptr<Backend> backend;
  synod::MemoryPlan plan;
  std::unique_ptr<Engine> engine;  // last: its thread uses all of the above

  // Generates from ids. `parse` splits channels by the family's markers.
  Reply generate(std::vector<int32_t> prompt, const GenerateOptions& options, bool parse,
                 const PieceCallback& on_piece, std::atomic<bool>& cancelled);
};

struct Session::Impl {
  std::shared_ptr<Model::Impl> model;
  std::vector<ChatMessage> messages;
  std::vector<synod::Tool> tools;
  std::atomic<bool> cancelled{false};
  std::vector<int32_t> last_ids;  // prompt and reply of the last generation: what save() looks for

  Reply generate(const GenerateOptions& options, const PieceCallback& on_piece);
};

}  // namespace synod::api
