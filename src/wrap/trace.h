// Trace: time and bytes of every op, as a table per part and op, and as a Chrome trace.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace synod {

class Trace final : public Backend {
 public:
  // `inner` runs the ops. `keep_events` records each op for write_chrome_trace.
  explicit Trace(Backend& inner, bool keep_events = false);

  std::string_view name() const override { return inner_.name(); }
  Buffer allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  Workspace& workspace() override { return inner_.workspace(); }
  Matrix place(const Matrix& matrix) override { return inner_.place(matrix); }
  bool is_dry() const override { return inner_.is_dry(); }
  void begin(const Label& label) override;
  void end() override;
  void join() override { inner_.join(); }
  StatusReport take_status() override { return inner_.take_status(); }

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

  struct Row {
    std::string part;  // label's part, "" outside
    std::string op;
    int64_t calls = 0;
    int64_t ns = 0;
    int64_t bytes = 0;  // operands read and written, weights as stored
  };
  std::vector<Row> rows() const;  // largest time first
  // Table with ms, share of time, GB/s and share of `ceiling_gb_s` (0 = column left out).
  std::string table(double ceiling_gb_s = 0.0) const;
  void write_chrome_trace(const std::string& path) const;  // kFailure when it cannot be written

 private:
  template <typename Op>
  void traced(const Op& op);

  struct Event {
    std::string name, part;
    int64_t layer;
    int64_t start_ns, ns;
  };
  Backend& inner_;
  bool keep_events_;
  std::vector<Label> labels_;
  std::map<std::pair<std::string, std::string>, Row> rows_;
  std::vector<Event> events_;
  int64_t origin_ns_;
};

}  // namespace synod
