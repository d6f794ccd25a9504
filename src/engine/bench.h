// Prefill and decode rates of a model on a backend, at several depths.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/model.h"

namespace synod {

struct BenchOptions {
  std::vector<int64_t> prompts = {512};  // prefill tests: tokens per test
  std::vector<int64_t> decodes = {64};   // decode tests: tokens per test
  std::vector<int64_t> depths = {0};     // tokens in the cache before a test
  int64_t repetitions = 3;
  int64_t chunk = 512;  // prompt tokens per forward call

  // Throws kUsage naming the option and its range.
  void check() const;
};

struct BenchResult {
  std::string test;  // "pp512", "tg64"
  int64_t depth = 0;
  std::vector<double> rates;  // tokens per second, in the order of the repetitions
  double median() const;
  double min() const;
  double max() const;
};

// Runs every test at every depth. Ids are pseudo-random, the same every time; each forward call also computes
// the arg-max of its last row, as a server would. Repetitions of a prefill at depth 0 start an empty
// sequence; every other repetition continues the one before, so the depth grows by the test's length each
// time. `on_test` is called before each repetition and returns false to stop early (then the result so far is
// returned).
std::vector<BenchResult> bench(const Model& model, Backend& backend, const BenchOptions& options,
                               const std::function<bool(const std::string& what)>& on_test = {});

}  // namespace synod
