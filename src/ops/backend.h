// Runs operations: one overload per op struct (ops.def). Primitives are mandatory; fused ops default to their
// lowering. Model code calls `be(RmsNorm{...})`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/buffer.h"
#include "ops/attention.h"
#include "ops/compress.h"
#include "ops/elementwise.h"
#include "ops/experts.h"
#include "ops/hyper_connection.h"
#include "ops/linear.h"
#include "ops/workspace.h"

namespace synod {

// Bits of the status word. Ops raise them; the model reads them once per step and fails the step.
enum class Status : uint32_t {
  kOk = 0,
  kNonFinite = 1,  // a score, weight or logit that decides something was NaN or infinite
  kBadId = 2,      // a token or expert id out of range
};

// Where in the model the running ops belong: shows in errors, profiles and plans.
struct Label {
  int64_t layer = -1;        // -1 outside the layers
  std::string_view part;     // "attention", "router", "head", ...; a literal
  std::string text() const;  // "layer 3 attention"
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;

  // Memory of this backend. `host` backends allow direct access to tensors.
  virtual Buffer allocate(int64_t bytes) = 0;
  virtual Workspace& workspace() = 0;
  // Called once per weight at load: returns the matrix where this backend reads it (itself on a CPU).
  virtual Matrix place(const Matrix& matrix) { return matrix; }
  virtual bool is_dry() const { return false; }

  // Labelled submissions; they nest, the innermost label is the current one. See Stage.
  virtual void begin(const Label& label) = 0;
  virtual void end() = 0;
  // Waits for everything issued (a no-op where ops run immediately).
  virtual void join() {}

  // Returns the raised status bits with the label of the first raise, and clears them.
  struct StatusReport {
    uint32_t bits = 0;
    Label where;
  };
  virtual StatusReport take_status() = 0;

  template <typename Op>
  void operator()(const Op& op) {
    op.check();
    run(op);
  }

#define SYNOD_PRIMITIVE(Op) virtual void run(const Op& op) = 0;
#define SYNOD_FUSED(Op) virtual void run(const Op& op);
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED
};

// Throws kNumeric naming the first raise when the step raised a status; the caller must not commit.
void require_ok(Backend& backend);

// A labelled span of ops.
class Stage {
 public:
  Stage(Backend& backend, int64_t layer, std::string_view part) : backend_(backend) {
    backend.begin({layer, part});
  }
  ~Stage() { backend_.end(); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

 private:
  Backend& backend_;
};

}  // namespace synod
