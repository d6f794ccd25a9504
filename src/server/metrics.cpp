#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace synod::server {
namespace {

std::vector<double> seconds_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
}

std::vector<double> token_buckets() { return {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576}; }

void header(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <typename T>
void single(std::string& out, std::string_view name, std::string_view type, std::string_view help, T value) {
  header(out, name, type, help);
  out += fmt::format("{} {}\n", name, value);
}

int64_t resident_bytes() {
  int64_t pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    long long size = 0, resident = 0;
    if (std::fscanf(file, "%lld %lld", &size, &resident) == 2) pages = resident;
    std::fclose(file);
  }
  return pages * 4096;
}

}  // namespace

std::string escape_label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
  }
  return out;
}

Histogram::Histogram(std::vector<double> upper_bounds)
    : bounds_(std::move(upper_bounds)), counts_(bounds_.size() + 1, 0) {}

void Histogram::observe(double value) {
  if (!std::isfinite(value)) return;
  const auto bucket =
      static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  const std::lock_guard lock(mutex_);
  ++counts_[bucket];
  sum_ += value;
  ++count_;
}

void Histogram::write(std::string& out, std::string_view name, std::string_view help) const {
  header(out, name, "histogram", help);
  const std::lock_guard lock(mutex_);
  int64_t below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    below += counts_[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], below);
  }
  out += fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count_, sum_);
}

Metrics::Metrics()
    : time_to_first_token(seconds_buckets()),
      inter_token(seconds_buckets()),
      request_seconds(seconds_buckets()),
      queue_seconds(seconds_buckets()),
      prompt_tokens(token_buckets()),
      completion_tokens(token_buckets()) {}

void Metrics::count_http(std::string_view route, int status) {
  const std::lock_guard lock(mutex_);
  ++http_[{std::string(route), status}];
}

std::string Metrics::text(const EngineStats& e, int64_t n_connections, std::string_view model) const {
  const auto per_second = [](int64_t n, double seconds) {
    return seconds > 0 ? static_cast<double>(n) / seconds : 0.0;
  };
  const double cache_share = e.cache_bytes_limit > 0 ? static_cast<double>(e.cache_bytes_used) /
                                                           static_cast<double>(e.cache_bytes_limit)
                                                     : 0.0;
  const double busy_per_step =
      e.steps_total > 0 ? static_cast<double>(e.step_sequences_total) / static_cast<double>(e.steps_total)
                        : 0.0;
  std::string out;
  header(out, "synod_info", "gauge", "The model that is served.");
  out += fmt::format("synod_info{{model=\"{}\"}} 1\n", escape_label(model));
  const auto counter = [&](std::string_view name, std::string_view help, auto value) {
    single(out, name, "counter", help, value);
  };
  const auto gauge = [&](std::string_view name, std::string_view help, auto value) {
    single(out, name, "gauge", help, value);
  };
  gauge("synod_requests_running", "Requests being computed.", e.running);
  gauge("synod_requests_waiting", "Requests in the queue.", e.waiting);
  gauge("synod_sequences_max", "Sequences that can run at once.", e.max_sequences);
  counter("synod_requests_total", "Requests accepted by the engine.", e.requests_total);
  counter("synod_requests_finished_total", "Requests that ended by themselves.", e.finished_total);
  counter("synod_requests_failed_total", "Requests that ended with an error.", e.failed_total);
  counter("synod_requests_cancelled_total", "Requests cancelled by their clients.", e.cancelled_total);
  counter("synod_requests_refused_total", "Requests refused because the queue was full.", e.refused_total);
  counter("synod_prompt_tokens_total", "Prompt tokens computed.", e.prompt_tokens_total);
  counter("synod_cached_tokens_total", "Prompt tokens taken from the prefix cache.", e.cached_tokens_total);
  counter("synod_generated_tokens_total", "Tokens generated.", e.generated_tokens_total);
  counter("synod_draft_tokens_total", "Tokens offered by speculation.", e.drafted_tokens_total);
  counter("synod_draft_accepted_tokens_total", "Tokens of speculation that were accepted.",
          e.accepted_tokens_total);
  counter("synod_preemptions_total", "Requests that gave their pages back for a while.", e.preemptions_total);
  counter("synod_steps_total", "Forward calls.", e.steps_total);
  counter("synod_prompt_seconds_total", "Time of steps with prompt tokens.", e.prompt_seconds_total);
  counter("synod_decode_seconds_total", "Time of steps without prompt tokens.", e.decode_seconds_total);
  counter("synod_forward_seconds_total", "Time in the model.", e.forward_seconds_total);
  counter("synod_overhead_seconds_total", "Time of steps outside of the model.", e.overhead_seconds_total);
  gauge("synod_kv_cache_bytes", "Bytes of the cache in use.", e.cache_bytes_used);
  gauge("synod_kv_cache_limit_bytes", "Bytes the cache may use.", e.cache_bytes_limit);
  gauge("synod_kv_cache_usage_ratio", "Share of the cache in use.", cache_share);
  gauge("synod_prefix_cache_entries", "Prefixes kept for reuse.", e.prefix_entries);
  counter("synod_prefix_cache_lookups_total", "Look-ups in the prefix cache.", e.prefix_lookups_total);
  counter("synod_prefix_cache_hits_total", "Look-ups that found a prefix.", e.prefix_hits_total);
  counter("synod_prefix_cache_evictions_total", "Prefixes dropped for room.", e.evictions_total);
  gauge("synod_disk_cache_bytes", "Bytes of the disk tier.", e.disk_bytes);
  counter("synod_disk_cache_hits_total", "Prefixes found on disk.", e.disk_hits_total);
  time_to_first_token.write(out, "synod_time_to_first_token_seconds", "From arrival to the first token.");
  inter_token.write(out, "synod_inter_token_seconds", "Between tokens of one choice.");
  request_seconds.write(out, "synod_request_seconds", "From arrival to the end.");
  queue_seconds.write(out, "synod_queue_seconds", "From arrival to the first step.");
  prompt_tokens.write(out, "synod_request_prompt_tokens", "Prompt tokens per request.");
  completion_tokens.write(out, "synod_request_completion_tokens", "Generated tokens per request.");
  gauge("synod_connections", "Open connections.", n_connections);
  gauge("process_resident_memory_bytes", "Resident memory.", resident_bytes());
  gauge("synod_uptime_seconds", "Seconds since the start.",
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  header(out, "synod_http_requests_total", "counter", "HTTP requests by route and status.");
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : http_) {
      out += fmt::format("synod_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n",
                         escape_label(key.first), key.second, count);
    }
  }
  // The names that dashboards made for llama.cpp look for.
  counter("llamacpp:prompt_tokens_total", "Number of prompt tokens processed.", e.prompt_tokens_total);
  counter("llamacpp:prompt_seconds_total", "Prompt process time.", e.prompt_seconds_total);
  counter("llamacpp:tokens_predicted_total", "Number of generation tokens processed.",
          e.generated_tokens_total);
  counter("llamacpp:tokens_predicted_seconds_total", "Predict process time.", e.decode_seconds_total);
  counter("llamacpp:n_decode_total", "Total number of forward calls.", e.steps_total);
  gauge("llamacpp:n_busy_slots_per_decode", "Average number of busy slots per forward call.", busy_per_step);
  gauge("llamacpp:prompt_tokens_seconds", "Average prompt throughput in tokens/s.",
        per_second(e.prompt_tokens_total, e.prompt_seconds_total));
  gauge("llamacpp:predicted_tokens_seconds", "Average generation throughput in tokens/s.",
        per_second(e.generated_tokens_total, e.decode_seconds_total));
  gauge("llamacpp:kv_cache_usage_ratio", "KV-cache usage. 1 means 100 percent usage.", cache_share);
  gauge("llamacpp:requests_processing", "Number of requests processing.", e.running);
  gauge("llamacpp:requests_deferred", "Number of requests deferred.", e.waiting);
  return out;
}

}  // namespace synod::server
