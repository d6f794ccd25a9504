// The engine as the server's generator.
#pragma once

#include "engine/engine.h"
#include "server/generation_run.h"

namespace synod::server {

class EngineGenerator final : public Generator {
 public:
  explicit EngineGenerator(Engine& engine) : engine_(engine) {}
  std::function<void()> submit(GenerationRequest request, EventSink sink) override {
    return [handle = engine_.submit(std::move(request), std::move(sink))] { handle.cancel(); };
  }
  EngineStats stats() const override { return engine_.stats(); }

 private:
  Engine& engine_;
};

}  // namespace synod::server
