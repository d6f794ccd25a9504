#include "engine/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "engine/session.h"

namespace synod {
namespace {

// Feeds pseudo-random ids to a sequence.
class Feeder {
 public:
  Feeder(const Model& model, Backend& backend, int64_t chunk)
      : model_(model), backend_(backend), chunk_(chunk) {
    restart();
  }

  void restart() {
    session_.reset();  // its pages go before the next one takes some
    session_ = std::make_unique<Session>(model_, backend_);
  }
  int64_t length() const { return session_->length(); }

  // Tokens in chunks; seconds taken.
  double prefill(int64_t n) {
    return timed([&] {
      for (int64_t done = 0; done < n; done += chunk_) step(std::min(chunk_, n - done));
    });
  }
  double decode(int64_t n) {
    return timed([&] {
      for (int64_t i = 0; i < n; ++i) step(1);
    });
  }

 private:
  template <typename Body>
  double timed(const Body& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  void step(int64_t n) {
    ids_.clear();
    const auto vocabulary = static_cast<uint64_t>(model_.info().vocab_size);
    for (int64_t i = 0; i < n; ++i) ids_.push_back(static_cast<int32_t>(random_() % vocabulary));
    static_cast<void>(session_->greedy(ids_));
  }

  const Model& model_;
  Backend& backend_;
  int64_t chunk_;
  std::unique_ptr<Session> session_;
  std::mt19937_64 random_{1};
  std::vector<int32_t> ids_;
};

}  // namespace

void BenchOptions::check() const {
  const auto each = [](const std::vector<int64_t>& values, const char* option, int64_t low) {
    for (const int64_t v : values) {
      if (v < low) fail(Error::Kind::kUsage, "{}: expected numbers of at least {}, got {}", option, low, v);
    }
  };
  each(prompts, "-p", 0), each(decodes, "-n", 0), each(depths, "-d", 0);
  if (repetitions < 1) fail(Error::Kind::kUsage, "-r: expected at least 1, got {}", repetitions);
  if (chunk < 1) fail(Error::Kind::kUsage, "--chunk: expected at least 1, got {}", chunk);
}

double BenchResult::median() const {
  std::vector<double> sorted = rates;
  std::ranges::sort(sorted);
  const size_t n = sorted.size();
  if (n == 0) return 0.0;
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double BenchResult::min() const { return rates.empty() ? 0.0 : *std::ranges::min_element(rates); }
double BenchResult::max() const { return rates.empty() ? 0.0 : *std::ranges::max_element(rates); }

std::vector<BenchResult> bench(const Model& model, Backend& backend, const BenchOptions& options,
                               const std::function<bool(const std::string& what)>& on_test) {
  options.check();
  std::vector<BenchResult> results;
  Feeder feeder(model, backend, options.chunk);
  const auto proceed = [&](const std::string& what) { return !on_test || on_test(what); };
  for (const int64_t depth : options.depths) {
    // False when the caller stops the run.
    const auto run = [&](const char* prefix, int64_t n, bool is_prefill) {
      if (n == 0) return true;
      BenchResult result{.test = fmt::format("{}{}", prefix, n), .depth = depth, .rates = {}};
      feeder.restart();
      if (depth > 0) {
        if (!proceed(fmt::format("filling to depth {}", depth))) return false;
        feeder.prefill(depth);
      }
      bool complete = true;
      for (int64_t r = 0; r < options.repetitions && complete; ++r) {
        complete =
            proceed(fmt::format("{} at depth {}, {} of {}", result.test, depth, r + 1, options.repetitions));
        if (!complete) break;
        if (is_prefill && depth == 0) feeder.restart();
        const double seconds = is_prefill ? feeder.prefill(n) : feeder.decode(n);
        result.rates.push_back(static_cast<double>(n) / std::max(seconds, 1e-9));
      }
      if (!result.rates.empty()) results.push_back(std::move(result));
      return complete;
    };
    for (const int64_t n : options.prompts)
      if (!run("pp", n, true)) return results;
    for (const int64_t n : options.decodes)
      if (!run("tg", n, false)) return results;
  }
  return results;
}

}  // namespace synod
