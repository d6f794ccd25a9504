#include "wrap/trace.h"

#include <algorithm>
#include <chrono>

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

Trace::Trace(Backend& inner, bool keep_events)
    : inner_(inner), keep_events_(keep_events), origin_ns_(now_ns()) {}

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
  op.visit(bytes);
  Row& row = rows_[{std::string(label.part), std::string(Op::kName)}];
  row.part = label.part;
  row.op = Op::kName;
  ++row.calls;
  row.ns += ns;
  row.bytes += bytes.weights + bytes.other;
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

std::string Trace::table(double ceiling_gb_s) const {
  const std::vector<Row> sorted = rows();
  int64_t all_ns = 0;
  for (const Row& row : sorted) all_ns += row.ns;
  std::string text =
      fmt::format("{:<24} {:<18} {:>8} {:>10} {:>6} {:>8}", "part", "op", "calls", "ms", "time", "GB/s");
  text += ceiling_gb_s > 0.0 ? fmt::format(" {:>8}\n", "ceiling") : "\n";
  for (const Row& row : sorted) {
    const double gb_s = row.ns > 0 ? static_cast<double>(row.bytes) / static_cast<double>(row.ns) : 0.0;
    const double share = all_ns > 0 ? 100.0 * static_cast<double>(row.ns) / static_cast<double>(all_ns) : 0.0;
    text += fmt::format("{:<24} {:<18} {:>8} {:>10.3f} {:>5.1f}% {:>8.2f}", row.part.empty() ? "-" : row.part,
                        row.op, row.calls, static_cast<double>(row.ns) * 1e-6, share, gb_s);
    text += ceiling_gb_s > 0.0 ? fmt::format(" {:>7.1f}%\n", 100.0 * gb_s / ceiling_gb_s) : "\n";
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
