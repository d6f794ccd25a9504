#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

#include "engine/vector_math.h"

namespace synod {

double log_sum_exp(std::span<const float> logits) {
  const float top = largest(logits);
  if (!std::isfinite(top)) return top;
  std::vector<float> weights(logits.size());
  return static_cast<double>(top) + std::log(exp_all(logits, top, 1.0F, weights.data()));
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, double log_sum, int64_t n) {
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  // A heap of the best so far whose front is the worst of them; later ids lose ties.
  std::vector<int32_t> best;
  const auto offer = [&](size_t i) {
    if (!std::isfinite(logits[i])) return;
    const auto id = static_cast<int32_t>(i);
    if (static_cast<int64_t>(best.size()) == n) {
      if (!(logits[i] > logits[static_cast<size_t>(best.front())])) return;
      std::pop_heap(best.begin(), best.end(), before);
      best.back() = id;
    } else {
      best.push_back(id);
    }
    std::push_heap(best.begin(), best.end(), before);
  };
  constexpr size_t kBlock = 64;
  for (size_t begin = 0; begin < logits.size() && n > 0; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, logits.size());
    const bool full = static_cast<int64_t>(best.size()) == n;
    if (full && !(largest(logits.subspan(begin, end - begin)) > logits[static_cast<size_t>(best.front())]))
      continue;
    for (size_t i = begin; i < end; ++i) offer(i);
  }
  std::sort_heap(best.begin(), best.end(), before);
  std::vector<TokenLogprob> result;
  for (const int32_t id : best) {
    result.push_back(
        {id, static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum)});
  }
  return result;
}

}  // namespace synod
