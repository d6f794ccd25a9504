// Counters and histograms in Prometheus' text format. The set is fixed and known at compile time, so that a
// scrape needs no registry of names and an update no lock but its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace synod::server {

// Seconds in buckets; observe() from any thread.
class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void observe(double value);
  void write(std::string& out, std::string_view name, std::string_view help) const;

 private:
  mutable std::mutex mutex_;
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;  // [bounds + 1], not cumulative
  double sum_ = 0.0;
  int64_t count_ = 0;
};

class Metrics {
 public:
  Metrics();

  Histogram time_to_first_token;  // from the request's arrival to its first token
  Histogram inter_token;          // between the tokens of one choice
  Histogram request_seconds;      // of generations, from arrival to the last byte handed over
  Histogram queue_seconds;
  Histogram prompt_tokens, completion_tokens;  // per request

  void count_http(std::string_view route, int status);
  // Everything, the engine's state included. `n_connections` are open sockets.
  std::string text(const EngineStats& engine, int64_t n_connections, std::string_view model) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> http_;  // by route and status
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A label's value with \, " and line ends escaped.
std::string escape_label(std::string_view value);

}  // namespace synod::server
