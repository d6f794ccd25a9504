// --trace, --ops and --dump-plan around a model that runs.
#pragma once

#include <memory>

#include "cli/options.h"
#include "models/model.h"
#include "wrap/trace.h"

namespace synod::cli {

// Kinds of the model's layers, for Trace; the model must outlive it.
Trace::LayerKind layer_kinds(const Model& model);

class Profiler {
 public:
  Profiler(const Options& options, const Model& model, Backend& backend);
  Backend& backend() { return trace_ ? static_cast<Backend&>(*trace_) : backend_; }
  // Prints the table, writes the trace, and exports the plan of one decode step after `length` tokens.
  void finish(int64_t length);

 private:
  const Options& options_;
  const Model& model_;
  Backend& backend_;
  std::unique_ptr<Trace> trace_;
};

}  // namespace synod::cli
