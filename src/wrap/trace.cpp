#include "wrap/trace.h"

#include <algorithm>
#include <chrono>
#include <type_traits>

#include "ops/visitor.h"
#include "wrap/text_file.h"

namespace synod {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Trace::Trace(Backend& inner, bool keep_events, LayerKind layer_kind)
    : inner_(inner), keep_events_(keep_events), layer_kind_(std::move(layer_kind)), origin_ns_(now_ns()) {}

void Trace::begin(const Label& label) {
  labels_.push_back(label);
  inner_.begin(label);
}

void Trace::end() {
  inner_.end();
  labels_.pop_back();
}

template <typename Op>
void Trace::traced(const Op& op) {
  const Label label = labels_.empty() ? Label{} : labels_.back();
  const int64_t start = now_ns();
  inner_.run(op);
  inner_.join();  // else the time of an op that runs later would show at whatever waits for it
  const int64_t ns = now_ns() - start;
  ByteCounter bytes;
  FlopCounter flops;
  op.visit(bytes), op.visit(flops);
  const std::string kind(layer_kind_ && label.layer >= 0 ? layer_kind_(label.layer) : "");
  Row& row = rows_[{std::string(label.part), kind, std::string(Op::kName)}];
  row.part = label.part, row.kind = kind, row.op = Op::kName;
  ++row.calls;
  row.ns += ns;
  row.bytes += bytes.weights + bytes.other;
  // Rows of SparseAttention are keys and values at once.
  row.flops += flops.flops * (std::is_same_v<Op, SparseAttention> ? 2.0 : 1.0);
  if (keep_events_)
    events_.push_back({std::string(Op::kName), std::string(label.part), label.layer, start, ns});
}

#define SYNOD_PRIMITIVE(Op) \
  void Trace::run(const Op& op) { traced(op); }
#define SYNOD_FUSED(Op) \
  void Trace::run(const Op& op) { traced(op); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

std::vector<Trace::Row> Trace::rows() const {
  std::vector<Row> result;
  for (const auto& [key, row] : rows_) result.push_back(row);
  std::ranges::stable_sort(result, [](const Row& a, const Row& b) { return a.ns > b.ns; });
  return result;
}

std::string Trace::table(const Ceilings& ceilings) const {
  const std::vector<Row> sorted = rows();
  double all_ns = 0.0;
  for (const Row& row : sorted) all_ns += static_cast<double>(row.ns);
  const bool with_share = ceilings.gb_s > 0.0 || ceilings.gflop_s > 0.0;
  std::string text = fmt::format("{:<18} {:<8} {:<17} {:>7} {:>10} {:>6} {:>7} {:>8}", "part", "layers", "op",
                                 "calls", "ms", "time", "GB/s", "GFLOP/s");
  text += with_share ? fmt::format(" {:>8}\n", "ceiling") : "\n";
  for (const Row& row : sorted) {
    const double ns = std::max(static_cast<double>(row.ns), 1.0);
    const double gb_s = static_cast<double>(row.bytes) / ns, gflop_s = row.flops / ns;
    text += fmt::format("{:<18} {:<8} {:<17} {:>7} {:>10.3f} {:>5.1f}% {:>7.2f} {:>8.1f}",
                        row.part.empty() ? "-" : row.part, row.kind.empty() ? "-" : row.kind, row.op,
                        row.calls, ns * 1e-6, 100.0 * ns / std::max(all_ns, 1.0), gb_s, gflop_s);
    const double share = std::max(ceilings.gb_s > 0.0 ? gb_s / ceilings.gb_s : 0.0,
                                  ceilings.gflop_s > 0.0 ? gflop_s / ceilings.gflop_s : 0.0);
    text += with_share ? fmt::format(" {:>7.1f}%\n", 100.0 * share) : "\n";
  }
  return text;
}

void Trace::write_chrome_trace(const std::string& path) const {
  std::string text = "{\"traceEvents\": [";
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& e = events_[i];
    // Times are microseconds.
    text += fmt::format(
        R"({}{{"name": {}, "cat": {}, "ph": "X", "pid": 1, "tid": 1, "ts": {:.3f}, "dur": {:.3f}, "args": {{"layer": {}}}}})",
        i == 0 ? "\n" : ",\n", json_string(e.name), json_string(e.part),
        static_cast<double>(e.start_ns - origin_ns_) * 1e-3, static_cast<double>(e.ns) * 1e-3, e.layer);
  }
  write_text_file(path, text + "\n]}\n");
}

}  // namespace synod
