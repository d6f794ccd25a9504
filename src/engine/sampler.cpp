#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "engine/vector_math.h"

namespace synod {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The order is total (logit, then id), so equal logits cannot make the result depend on a sort.
template <typename Candidate>
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// splitmix64's finaliser: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

void refuse(const char* option, const char* range, double got) {
  fail(Error::Kind::kUsage, "{} must be {}, got {}", option, range, got);
}

void check_id(const char* what, int32_t id, int64_t vocab_size) {
  if (id >= 0 && (vocab_size == 0 || id < vocab_size)) return;
  if (vocab_size == 0) fail(Error::Kind::kUsage, "{}: token id must be at least 0, got {}", what, id);
  fail(Error::Kind::kUsage, "{}: token id must be 0 to {}, got {}", what, vocab_size - 1, id);
}

}  // namespace

void SamplerOptions::check(int64_t vocab_size) const {
  if (!(temperature >= 0.0F) || !std::isfinite(temperature)) refuse("temperature", "at least 0", temperature);
  if (top_k < 0) refuse("top-k", "at least 0", static_cast<double>(top_k));
  if (!(top_p > 0.0F && top_p <= 1.0F)) refuse("top-p", "above 0 and at most 1", top_p);
  if (!(min_p >= 0.0F && min_p < 1.0F)) refuse("min-p", "at least 0 and below 1", min_p);
  if (!(typical_p > 0.0F && typical_p <= 1.0F)) refuse("typical-p", "above 0 and at most 1", typical_p);
  if (!(repetition_penalty > 0.0F) || !std::isfinite(repetition_penalty)) {
    refuse("repetition penalty", "above 0", repetition_penalty);
  }
  if (repeat_last_n < -1) refuse("repeat-last-n", "at least -1", static_cast<double>(repeat_last_n));
  if (!(std::fabs(frequency_penalty) <= 2.0F)) refuse("frequency penalty", "-2 to 2", frequency_penalty);
  if (!(std::fabs(presence_penalty) <= 2.0F)) refuse("presence penalty", "-2 to 2", presence_penalty);
  for (const int32_t id : suppress) check_id("suppressed tokens", id, vocab_size);
  for (const LogitBias& entry : logit_bias) {
    check_id("logit bias", entry.id, vocab_size);
    if (std::isnan(entry.bias) || entry.bias == std::numeric_limits<float>::infinity()) {
      refuse("logit bias", "a number (or -infinity)", entry.bias);
    }
  }
}

bool SamplerOptions::has_penalties() const {
  return (repetition_penalty != 1.0F && repeat_last_n != 0) || frequency_penalty != 0.0F ||
         presence_penalty != 0.0F;
}

double random_unit(uint64_t seed, int64_t choice, int64_t position) {
  constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53
  const uint64_t stream = mix(seed ^ mix(static_cast<uint64_t>(choice)));
  return static_cast<double>(mix(stream ^ mix(~static_cast<uint64_t>(position))) >> 11) * kUnit;
}

struct Sampler::Scratch {
  std::vector<Candidate> candidates;
  std::vector<float> weights;      // e^logit of every id
  std::vector<double> block_sums;  // of e^logit
  std::vector<float> block_tops;   // largest logit of every kScanBlock
  std::vector<float> order;
  std::vector<uint32_t> ids;  // collected
  std::vector<uint64_t> ranks;
};

std::shared_ptr<Sampler::Scratch> Sampler::make_scratch() { return std::make_shared<Scratch>(); }

Sampler::Sampler(const SamplerOptions& options, int64_t choice, std::shared_ptr<Scratch> scratch)
    : options_(options), choice_(choice), scratch_(scratch ? std::move(scratch) : make_scratch()) {
  options.check();
}

// The largest logit; notes that of every block, too.
float Sampler::scan(std::span<const float> logits) {
  scratch_->block_tops.resize((logits.size() + kScanBlock - 1) / kScanBlock);
  return largest_of_blocks(logits, scratch_->block_tops.data());
}

// The first id with the largest logit.
int32_t Sampler::first_of(std::span<const float> logits, float top) const {
  const auto block =
      static_cast<size_t>(std::ranges::find(scratch_->block_tops, top) - scratch_->block_tops.begin());
  const auto from = logits.begin() + static_cast<std::ptrdiff_t>(block * kScanBlock);
  return static_cast<int32_t>(std::find(from, logits.end(), top) - logits.begin());
}

void Sampler::accept_prompt(std::span<const int32_t> ids) {
  if (options_.repetition_penalty == 1.0F || options_.repeat_last_n == 0) return;
  if (options_.repeat_last_n < 0) {
    for (const int32_t id : ids) ++recent_[id];
    return;
  }
  const size_t n = std::min(ids.size(), static_cast<size_t>(options_.repeat_last_n));
  history_.assign(ids.end() - static_cast<std::ptrdiff_t>(n), ids.end());
  for (const int32_t id : history_) ++recent_[id];
}

void Sampler::accept(int32_t id) {
  if (options_.frequency_penalty != 0.0F || options_.presence_penalty != 0.0F) ++generated_[id];
  if (options_.repetition_penalty == 1.0F || options_.repeat_last_n == 0) return;
  ++recent_[id];
  if (options_.repeat_last_n < 0) return;
  history_.push_back(id);
  const auto last_n = static_cast<size_t>(options_.repeat_last_n);
  if (history_.size() <= last_n) return;
  const int32_t old = history_[history_.size() - last_n - 1];
  if (--recent_[old] == 0) recent_.erase(old);
}

void Sampler::restrict(std::span<float> logits, const Limits& limits) const {
  const auto ban = [&](int32_t id) {
    if (id >= 0 && static_cast<size_t>(id) < logits.size()) logits[static_cast<size_t>(id)] = kMinusInfinity;
  };
  for (const LogitBias& entry : options_.logit_bias) {
    if (static_cast<size_t>(entry.id) < logits.size()) logits[static_cast<size_t>(entry.id)] += entry.bias;
  }
  for (const int32_t id : options_.suppress) ban(id);
  for (const int32_t id : limits.banned) ban(id);
  if (limits.allowed.empty()) return;
  // A model's vocabulary may be padded beyond the tokenizer's: what the mask does not know is not allowed.
  const size_t n_words = (logits.size() + 31) / 32;
  for (size_t word = 0; word < n_words; ++word) {
    const uint32_t bits = word < limits.allowed.size() ? limits.allowed[word] : 0;
    if (bits == 0xFFFFFFFFU) continue;
    const size_t begin = word * 32, end = std::min(begin + 32, logits.size());
    for (size_t id = begin; id < end; ++id) {
      logits[id] = ((bits >> (id - begin)) & 1U) != 0 ? logits[id] : kMinusInfinity;
    }
  }
}

void Sampler::penalise(std::span<float> logits) const {
  if (options_.repetition_penalty != 1.0F) {
    for (const auto& [id, count] : recent_) {
      if (static_cast<size_t>(id) >= logits.size()) continue;
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0.0F ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
  }
  for (const auto& [id, count] : generated_) {
    if (static_cast<size_t>(id) >= logits.size()) continue;
    logits[static_cast<size_t>(id)] -=
        static_cast<float>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
}

int32_t Sampler::pick(std::span<float> logits, int64_t position, const Limits& limits) {
  restrict(logits, limits);
  penalise(logits);
  float top = scan(logits);
  if (top == std::numeric_limits<float>::infinity()) {  // not a score: never selects
    for (float& logit : logits) logit = std::isfinite(logit) ? logit : kMinusInfinity;
    top = scan(logits);
  }
  if (top == kMinusInfinity) {
    fail(Error::Kind::kNumeric, "sampling: no allowed token has a finite logit among {}", logits.size());
  }
  if (options_.temperature == 0.0F) {
    return first_of(logits, top);
  }
  return draw(logits, top, position);
}

int32_t Sampler::draw(std::span<const float> logits, float top, int64_t position) {
  std::vector<Candidate>& candidates = scratch_->candidates;
  // What is further below the largest logit has less than 1e-10 of the mass all together, for any vocabulary.
  constexpr float kReach = 36.0F;
  const float reach = kReach * std::max(1.0F, options_.temperature);
  const bool needs_order = options_.top_p < 1.0F || options_.typical_p < 1.0F;
  float floor = top - reach;
  // Without samplers before it, min-p is a bound on logits.
  const float min_p_floor = options_.min_p > 0.0F ? top + std::log(options_.min_p) : kMinusInfinity;
  if (!needs_order) floor = std::max(floor, min_p_floor);

  top_ = top;
  const bool has_top_k = options_.top_k > 0 && static_cast<size_t>(options_.top_k) < logits.size();
  if (has_top_k) {
    collect_top_k(logits, static_cast<size_t>(options_.top_k));
    std::erase_if(candidates, [&](const Candidate& c) { return c.logit < floor; });
  } else if (!needs_order && options_.min_p == 0.0F) {
    return draw_of_all(logits, top, floor, position);
  } else if (options_.typical_p == 1.0F && needs_order) {
    collect_top_p(logits, top);
  } else {
    collect_above(logits, floor);
  }
  if (options_.typical_p < 1.0F) keep_typical();
  if (options_.top_p < 1.0F && (has_top_k || options_.typical_p < 1.0F)) {
    keep_mass(static_cast<double>(options_.top_p) * weigh());
  }
  if (needs_order && options_.min_p > 0.0F) {
    // The most likely token is kept whatever the typical set was.
    float best = kMinusInfinity;
    for (const Candidate& c : candidates) best = std::max(best, c.logit);
    const float least = best + std::log(options_.min_p);
    std::erase_if(candidates, [&](const Candidate& c) { return c.logit < least; });
  }

  const float inverse = 1.0F / options_.temperature;
  double total = 0.0;
  for (Candidate& c : candidates) {
    c.p = exp_negative(std::min(0.0F, (c.logit - top_) * inverse));
    total += static_cast<double>(c.p);
  }
  if (!(total > 0.0)) return std::min_element(candidates.begin(), candidates.end(), before<Candidate>)->id;
  double rest = random_unit(options_.seed, choice_, position) * total;
  int32_t last = -1;  // the sum of p may round below `rest`
  for (const Candidate& c : candidates) {
    if (c.p == 0.0F) continue;
    last = c.id;
    rest -= static_cast<double>(c.p);
    if (rest < 0.0) return c.id;
  }
  return last;
}

// Ids of the logits that are at least `least`, in order, from `n` on; returns their end. Blocks whose largest
// logit is below are not looked at.
size_t Sampler::collect(std::span<const float> logits, float least, size_t first_block, size_t end_block,
                        size_t n) {
  std::vector<uint32_t>& ids = scratch_->ids;
  for (size_t block = first_block; block < end_block; ++block) {
    if (!(scratch_->block_tops[block] >= least)) continue;
    if (ids.size() < n + kScanBlock) ids.resize(2 * n + 16 * kScanBlock);
    const size_t begin = block * kScanBlock, size = std::min(kScanBlock, logits.size() - begin);
    n += at_least(logits.subspan(begin, size), least, static_cast<uint32_t>(begin), &ids[n]);
  }
  return n;
}

// Order of the candidates as one number: larger comes first. Adding zero makes the two zeros one.
uint64_t Sampler::rank(float logit, uint32_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0F);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<uint64_t>(ordered) << 32 | (~id & 0xFFFFFFFFU);
}

// The first `most` in order of the first `n` collected ids; not sorted.
std::span<uint64_t> Sampler::ranked(std::span<const float> logits, size_t n, size_t most) {
  std::vector<uint64_t>& ranks = scratch_->ranks;
  ranks.resize(n);
  for (size_t i = 0; i < n; ++i) ranks[i] = rank(logits[scratch_->ids[i]], scratch_->ids[i]);
  if (n > most) {
    std::ranges::nth_element(ranks, ranks.begin() + static_cast<std::ptrdiff_t>(most) - 1, std::greater<>());
    ranks.resize(most);
  }
  return ranks;
}

void Sampler::take_sorted(std::span<const float> logits, std::span<uint64_t> ranks) {
  std::ranges::sort(ranks, std::greater<>());
  scratch_->candidates.clear();
  for (const uint64_t rank : ranks) {
    const uint32_t id = ~static_cast<uint32_t>(rank);
    scratch_->candidates.push_back({static_cast<int32_t>(id), logits[id], 0.0F});
  }
}

// The k first, sorted. The k-th largest of the blocks' maxima is reached by k ids at least, so what is below
// it need not be looked at. What is collected is cut back to k whenever there is twice as much.
void Sampler::collect_top_k(std::span<const float> logits, size_t k) {
  const std::vector<float>& block_tops = scratch_->block_tops;
  float least = std::numeric_limits<float>::lowest();
  if (k <= block_tops.size()) {
    std::vector<float>& order = scratch_->order;
    order = block_tops;
    std::ranges::nth_element(order, order.begin() + static_cast<std::ptrdiff_t>(k) - 1, std::greater<>());
    least = std::max(least, order[k - 1]);
  }
  const size_t limit = std::max<size_t>(2 * k, 256);
  size_t n = 0;
  for (size_t block = 0; block < block_tops.size(); ++block) {
    n = collect(logits, least, block, block + 1, n);
    if (n < limit) continue;
    const std::span<const uint64_t> kept = ranked(logits, n, k);
    n = kept.size();
    for (size_t i = 0; i < n; ++i) scratch_->ids[i] = ~static_cast<uint32_t>(kept[i]);
    // An id that ties with the last one comes later, so it loses.
    least = std::nextafter(logits[scratch_->ids[n - 1]], std::numeric_limits<float>::infinity());
  }
  take_sorted(logits, ranked(logits, n, k));
}

void Sampler::collect_above(std::span<const float> logits, float floor) {
  const size_t n = collect(logits, floor, 0, scratch_->block_tops.size(), 0);
  scratch_->candidates.clear();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t id = scratch_->ids[i];
    scratch_->candidates.push_back({static_cast<int32_t>(id), logits[id], 0.0F});
  }
}

// Without any cut no candidates are needed: sums of blocks, then the block and the id that the draw hits.
int32_t Sampler::draw_of_all(std::span<const float> logits, float top, float floor, int64_t position) {
  std::vector<double>& block_sums = scratch_->block_sums;
  block_sums.resize(logits.size() / kExpBlock + 1);
  const float scale = 1.0F / options_.temperature;
  const double total = exp_sums(logits, top, scale, block_sums.data());
  double rest = random_unit(options_.seed, choice_, position) * total;
  for (size_t begin = 0, block = 0; begin < logits.size(); begin += kExpBlock, ++block) {
    if (rest >= block_sums[block]) {
      rest -= block_sums[block];
      continue;
    }
    const auto hit = logits.subspan(begin, std::min(kExpBlock, logits.size() - begin));
    std::array<float, kExpBlock> weights;
    exp_all(hit, top, scale, weights.data());
    for (size_t i = 0; i < hit.size(); ++i) {
      if (!(hit[i] >= floor)) continue;
      rest -= static_cast<double>(weights[i]);
      if (rest < 0.0) return static_cast<int32_t>(begin + i);
    }
  }
  // Sums of weights may round below `rest`: the most likely id is then as good as any.
  return first_of(logits, top);
}

// The most likely ids of mass top_p. Mostly a few logits near the largest have it: those within some distance
// are collected, and sorted when they suffice.
void Sampler::collect_top_p(std::span<const float> logits, float top) {
  constexpr size_t kMostSorted = 2048;
  std::vector<double>& block_sums = scratch_->block_sums;
  block_sums.resize(logits.size() / kExpBlock + 1);
  const double target = static_cast<double>(options_.top_p) * exp_sums(logits, top, 1.0F, block_sums.data());
  for (const float distance : {4.0F, 8.0F, 16.0F}) {
    const size_t n = collect(logits, top - distance, 0, scratch_->block_tops.size(), 0);
    if (n > kMostSorted) break;
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
      sum += static_cast<double>(exp_negative(logits[scratch_->ids[i]] - top));
    }
    if (sum < target) continue;
    take_sorted(logits, ranked(logits, n, n));
    weigh();
    keep_mass(target);
    return;
  }
  collect_top_p_of_bins(logits, top);
}

// For flat distributions, in no order: bins by logit find the bin in which the mass is reached, and only that
// one is sorted.
void Sampler::collect_top_p_of_bins(std::span<const float> logits, float top) {
  std::vector<Candidate>& candidates = scratch_->candidates;
  std::vector<float>& weights = scratch_->weights;
  constexpr size_t kBins = 1024;
  constexpr float kReach = 36.0F;  // as in draw()
  weights.resize(logits.size());
  const double target = static_cast<double>(options_.top_p) * exp_all(logits, top, 1.0F, weights.data());
  std::array<double, kBins> mass{};
  const auto bin_of = [top](float logit) {
    const float bin = (top - logit) * (static_cast<float>(kBins) / kReach);
    return bin < static_cast<float>(kBins) ? static_cast<size_t>(bin) : kBins;  // NaN and far ones: kBins
  };
  for (size_t i = 0; i < logits.size(); ++i) {
    if (const size_t bin = bin_of(logits[i]); bin < kBins) mass[bin] += static_cast<double>(weights[i]);
  }
  double sum = 0.0;
  size_t last_bin = 0;
  while (last_bin + 1 < kBins && sum + mass[last_bin] < target) sum += mass[last_bin++];
  candidates.clear();
  std::vector<Candidate> border;
  for (size_t i = 0; i < logits.size(); ++i) {
    const size_t bin = bin_of(logits[i]);
    if (bin > last_bin) continue;
    (bin < last_bin ? candidates : border).push_back({static_cast<int32_t>(i), logits[i], weights[i]});
  }
  std::sort(border.begin(), border.end(), before<Candidate>);
  for (size_t i = 0; i < border.size() && (sum < target || candidates.empty()); ++i) {
    sum += static_cast<double>(border[i].p);
    candidates.push_back(border[i]);
  }
}

// p = e^(logit - top), not normalised; returns the sum.
double Sampler::weigh() {
  double sum = 0.0;
  for (Candidate& c : scratch_->candidates) sum += static_cast<double>(c.p = exp_negative(c.logit - top_));
  return sum;
}

// Meister et al., "Locally typical sampling": by |surprise - entropy|, the smallest set of enough mass.
void Sampler::keep_typical() {
  std::vector<Candidate>& candidates = scratch_->candidates;
  const double sum = weigh();
  double entropy = 0.0;  // of p / sum, in nats
  for (const Candidate& c : candidates) {
    if (c.p > 0.0F) entropy -= static_cast<double>(c.p) / sum * std::log(static_cast<double>(c.p) / sum);
  }
  const double log_sum = std::log(sum);
  const auto distance = [&](const Candidate& c) {
    return std::fabs(log_sum - static_cast<double>(c.logit - top_) - entropy);
  };
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const double da = distance(a), db = distance(b);
    return da != db ? da < db : before(a, b);
  });
  double mass = 0.0;
  size_t keep = 0;
  while (keep < candidates.size() && mass < static_cast<double>(options_.typical_p) * sum) {
    mass += static_cast<double>(candidates[keep++].p);
  }
  candidates.resize(std::max<size_t>(keep, 1));
  std::sort(candidates.begin(), candidates.end(), before<Candidate>);
}

// Of weighed candidates in order: the first whose p reach `target`; one at least.
void Sampler::keep_mass(double target) {
  std::vector<Candidate>& candidates = scratch_->candidates;
  double mass = 0.0;
  size_t keep = 0;
  while (keep < candidates.size() && mass < target) mass += static_cast<double>(candidates[keep++].p);
  candidates.resize(std::max<size_t>(keep, 1));
}

int32_t Sampler::sample(std::span<const float> logits) {
  copy_.assign(logits.begin(), logits.end());
  const int32_t id = pick(copy_, position_++, {});
  accept(id);
  return id;
}

}  // namespace synod
