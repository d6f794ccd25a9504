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
  int64_t save(std::vector<int32_t> ids, const std::filesystem::path& path) override {
    return engine_.save(std::move(ids), path);
  }
  std::vector<int32_t> restore(const std::filesystem::path& path) override { return engine_.restore(path); }

 private:
  Engine& engine_;
};

}  // namespace synod::server
