// Peak memory before anything is loaded: weights as stored, cache for a context, scratch of the largest step.
#pragma once

#include <cstdint>
#include <string>

#include "models/model.h"

namespace synod {

struct MemoryPlan {
  int64_t context_length = 0;   // tokens
  int64_t chunk = 0;            // tokens per forward call
  int64_t weight_bytes = 0;     // mapped from the file on a CPU
  int64_t cache_bytes = 0;      // one sequence of context_length tokens, during the largest call
  int64_t scratch_bytes = 0;    // activations
  int64_t n_ops = 0;            // of one decode step
  int64_t bytes_per_token = 0;  // weights read per decoded token

  int64_t total() const { return weight_bytes + cache_bytes + scratch_bytes; }
  std::string describe() const;
};

// Runs the model on DryRun: checks every op's shapes too. context_length 0 = the model's.
MemoryPlan plan_memory(const Model& model, int64_t context_length, int64_t chunk);

// Writes the operations of one decode step after `past` tokens, JSON or DOT (wrap/recorder.h). Needs no
// memory.
void export_plan(const Model& model, int64_t past, const std::string& path);

// Bytes a process may still take here: free and reclaimable memory within the cgroup's limit.
int64_t available_memory();

// Throws kNoMemory with the plan's numbers when it exceeds `available`.
void require_fits(const MemoryPlan& plan, int64_t available);

}  // namespace synod
