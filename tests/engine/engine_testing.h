// The bundled models behind an engine, for tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "ref/ref_backend.h"

namespace synod::testing {

inline std::unique_ptr<CpuBackend> cpu_backend(int n_threads = 2) {
  return std::make_unique<CpuBackend>(std::make_unique<RefBackend>(),
                                      CpuOptions{.n_threads = n_threads, .isa = {}});
}

struct Loaded {
  explicit Loaded(const std::string& family)
      : checkpoint(Checkpoint::open(std::string(SYNOD_SOURCE_DIR "/models/") + family + "-mini-q8_0.gguf")),
        model(load_model(checkpoint, {})),
        tokenizer(load_tokenizer(checkpoint)),
        backend(cpu_backend()),
        lone_backend(cpu_backend(1)) {}

  std::vector<int32_t> encode(const std::string& text) const { return tokenizer.encode(text, true); }
  std::vector<int32_t> model_stop_ids() const { return stop_ids(checkpoint, tokenizer, *model->dialogue()); }

  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
  Tokenizer tokenizer;
  std::unique_ptr<CpuBackend> backend;       // for engines, one at a time
  std::unique_ptr<CpuBackend> lone_backend;  // for what they are compared with, meanwhile
};

// Loaded once per process: the tests only read them.
inline const Loaded& loaded(const std::string& family) {
  static const Loaded gemma("gemma4"), deepseek("deepseek4");
  return family == "gemma4" ? gemma : deepseek;
}

// `n` tokens after `prompt`.
inline std::vector<int32_t> greedy_ids(Session& session, const std::vector<int32_t>& prompt, int64_t n) {
  std::vector<int32_t> ids;
  int32_t token = session.greedy(prompt);
  while (true) {
    ids.push_back(token);
    if (static_cast<int64_t>(ids.size()) == n) return ids;
    token = session.greedy(std::span(&token, 1));
  }
}

// The continuation that a sequence of its own gives, without engine, cache or batch.
inline std::vector<int32_t> lone_greedy(const Loaded& m, const std::vector<int32_t>& prompt, int64_t n) {
  Session session(*m.model, *m.lone_backend);
  return greedy_ids(session, prompt, n);
}

// Pseudo-random ids of text tokens.
inline std::vector<int32_t> random_ids(int64_t n, uint32_t seed, int32_t vocab = 8192) {
  std::vector<int32_t> ids;
  uint64_t x = seed * 0x9E3779B97F4A7C15U + 1;
  for (int64_t i = 0; i < n; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    ids.push_back(static_cast<int32_t>(300 + x % static_cast<uint64_t>(vocab - 300)));
  }
  return ids;
}

}  // namespace synod::testing
