// Trace: time and bytes of every op, as a table per part and op, and as a Chrome trace.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace synod {

class Trace final : public Backend {
 public:
  // Kind of a layer ("sliding", "full", ...), which the table tells apart.
  using LayerKind = std::function<std::string_view(int64_t layer)>;
  // `inner` runs the ops. `keep_events` records each op for write_chrome_trace.
  explicit Trace(Backend& inner, bool keep_events = false, LayerKind layer_kind = {});

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
    std::string kind;  // of the layers, "" outside them
    std::string op;
    int64_t calls = 0;
    int64_t ns = 0;
    int64_t bytes = 0;   // operands read and written, weights as stored
    double flops = 0.0;  // of products and attention
  };
  // What the machine can do; 0 = not known.
  struct Ceilings {
    double gb_s = 0.0;     // bytes read
    double gflop_s = 0.0;  // multiply-adds as two
  };
  std::vector<Row> rows() const;  // largest time first
  // Table with ms, share of time, GB/s, GFLOP/s and, where ceilings are known, the larger of both shares.
  std::string table(const Ceilings& ceilings) const;
  void clear() { rows_.clear(), events_.clear(); }
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
  LayerKind layer_kind_;
  std::vector<Label> labels_;
  std::map<std::array<std::string, 3>, Row> rows_;
  std::vector<Event> events_;
  int64_t origin_ns_;
};

}  // namespace synod
