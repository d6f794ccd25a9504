#include "cli/profiling.h"

#include <cstdio>

#include "base/log.h"
#include "engine/memory_plan.h"

namespace synod::cli {

Trace::LayerKind layer_kinds(const Model& model) {
  return [&kinds = model.info().layer_kinds](int64_t layer) -> std::string_view {
    if (layer >= static_cast<int64_t>(kinds.size())) return "";
    return kinds[static_cast<size_t>(
        layer)];  // no conditional operator: its result would be a temporary string
  };
}

Profiler::Profiler(const Options& options, const Model& model, Backend& backend)
    : options_(options), model_(model), backend_(backend) {
  if (options.ops_table || !options.trace_path.empty()) {
    trace_ = std::make_unique<Trace>(backend, !options.trace_path.empty(), layer_kinds(model));
  }
}

void Profiler::finish(int64_t length) {
  if (options_.ops_table) std::fputs(trace_->table({}).c_str(), stderr);
  if (!options_.trace_path.empty()) {
    trace_->write_chrome_trace(options_.trace_path);
    log_info("wrote {}", options_.trace_path);
  }
  if (!options_.dump_plan_path.empty()) {
    export_plan(model_, length, options_.dump_plan_path);
    log_info("wrote {}", options_.dump_plan_path);
  }
}

}  // namespace synod::cli
