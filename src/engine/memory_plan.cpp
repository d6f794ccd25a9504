#include "engine/memory_plan.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <vector>

#include "base/log.h"
#include "wrap/dry_run.h"
#include "wrap/recorder.h"

namespace synod {
namespace {

// One forward call of `n` tokens after `past` others, on a cache without memory.
void dry_forward(const Model& model, Backend& dry, int64_t past, int64_t n) {
  KvCache cache(model.cache_spec(), {});
  const std::array<SequenceId, 1> sequences = {cache.create()};
  if (past > 0) {
    cache.reserve(sequences[0], past);
    cache.commit(sequences[0], past);
  }
  cache.reserve(sequences[0], n);
  const std::array<int64_t, 2> row_start = {0, n};
  const std::array<int64_t, 1> pasts = {past};
  const BatchView batch{.ids = Tensor::contiguous(nullptr, DType::kI32, {n}, "ids"),
                        .positions = Tensor::contiguous(nullptr, DType::kI32, {n}, "positions"),
                        .row_start = row_start,
                        .past = pasts};
  ForwardRequest request;
  request.rows = Tensor::contiguous(nullptr, DType::kI32, {1}, "rows");
  request.logits = Tensor::contiguous(nullptr, DType::kF32, {1, model.info().vocab_size}, "logits");
  model.forward(batch, cache.view(sequences), dry, request);
}

int64_t read_number(const char* path) {
  std::ifstream in(path);
  int64_t value = -1;
  return in >> value ? value : -1;
}

}  // namespace

MemoryPlan plan_memory(const Model& model, int64_t context_length, int64_t chunk) {
  MemoryPlan plan;
  plan.context_length = context_length > 0 ? context_length : model.info().context_length;
  plan.chunk = std::clamp<int64_t>(chunk, 1, plan.context_length);
  plan.weight_bytes = model.weights().bytes();
  plan.bytes_per_token = model.weights().bytes_per_token(model.info().n_experts_used);
  plan.cache_bytes = model.cache_spec().bytes(plan.context_length, plan.chunk);
  DryRun prefill;
  dry_forward(model, prefill, plan.context_length - plan.chunk, plan.chunk);
  DryRun decode;
  dry_forward(model, decode, plan.context_length - 1, 1);
  plan.scratch_bytes = prefill.workspace().peak_bytes();
  plan.n_ops = decode.n_ops();
  return plan;
}

std::string MemoryPlan::describe() const {
  return fmt::format(
      "memory plan for {} tokens, {} per step\n"
      "  weights  {:>12}\n"
      "  cache    {:>12}\n"
      "  scratch  {:>12}\n"
      "  total    {:>12}\n"
      "one decoded token reads {} of weights in {} operations\n",
      context_length, chunk, human_bytes(weight_bytes), human_bytes(cache_bytes), human_bytes(scratch_bytes),
      human_bytes(total()), human_bytes(bytes_per_token), n_ops);
}

void export_plan(const Model& model, int64_t past, const std::string& path) {
  DryRun dry;
  Recorder recorder(dry);
  dry_forward(model, recorder, past, 1);
  recorder.write(path);
}

int64_t available_memory() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  const int64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (limit > 0 && used >= 0) available = std::min(available, std::max<int64_t>(limit - used, 0));
  return available;
}

void require_fits(const MemoryPlan& plan, int64_t available) {
  if (plan.total() <= available) return;
  fail(Error::Kind::kNoMemory,
       "does not fit in memory: expected at most {} (available), got {} = weights {} + cache {} + scratch {} "
       "for {} "
       "tokens; use a smaller --ctx-size or a smaller file, or --force to try anyway",
       human_bytes(available), human_bytes(plan.total()), human_bytes(plan.weight_bytes),
       human_bytes(plan.cache_bytes), human_bytes(plan.scratch_bytes), plan.context_length);
}

}  // namespace synod
