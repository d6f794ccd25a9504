// Recorder: keeps the ops that a forward call issues, to replay them (capture) and to export the plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace synod {

// Ops hold views: what they point to (workspace, batch, cache tables) must still stand at replay.
class Recorder final : public Backend {
 public:
  // With `inner`, ops are run as well as recorded.
  explicit Recorder(Backend& memory, Backend* inner = nullptr) : memory_(memory), inner_(inner) {}

  std::string_view name() const override { return memory_.name(); }
  Buffer allocate(int64_t bytes) override { return memory_.allocate(bytes); }
  Workspace& workspace() override { return memory_.workspace(); }
  Matrix place(const Matrix& matrix) override { return memory_.place(matrix); }
  bool is_dry() const override { return memory_.is_dry(); }
  void begin(const Label& label) override;
  void end() override;
  void join() override { memory_.join(); }
  StatusReport take_status() override { return memory_.take_status(); }

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

  void replay(Backend& backend) const;
  size_t size() const { return ops_.size(); }
  // The plan: every op with label, operands, types, shapes, strides-free bytes and values.
  std::string to_json() const;
  std::string to_dot() const;
  // Writes JSON, or DOT when `path` ends in .dot; kFailure when it cannot.
  void write(const std::string& path) const;

 private:
  struct Operand {
    std::string role;  // "x", "weight", ...
    char access;       // 'r', 'w', 'm' (in place)
    std::string type;  // "f32", "q4_k", ...
    std::string shape;
    int64_t bytes;
    const std::byte* data;  // links producers and consumers
    int64_t extent;         // bytes from data to the end of the last row
    std::string name;
  };
  struct Entry {
    Label label;
    std::string op;
    Workspace::Mark mark;  // of memory_, before the op
    std::vector<Operand> operands;
    std::vector<std::pair<std::string, double>> values;
    std::function<void(Backend&)> issue;
  };
  struct Describer;
  template <typename Op>
  void record(const Op& op);
  int64_t producer(size_t reader, const Operand& operand) const;

  Backend& memory_;
  Backend* inner_;
  std::vector<Label> labels_;
  std::vector<Entry> ops_;
};

}  // namespace synod
