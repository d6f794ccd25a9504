// ImatrixCollector: runs ops on another backend and sums the squares of what enters each watched matrix.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ops/backend.h"

namespace synod {

class ImatrixCollector final : public Backend {
 public:
  // `inner` must be a host backend: operands are read here.
  explicit ImatrixCollector(Backend& inner) : inner_(inner) {}

  // Sums of one slot: f64 [n_columns], and how many rows entered. Exact order: tokens ascending.
  struct Sums {
    std::vector<double> squares;
    int64_t n_rows = 0;
  };
  // Counts the inputs of `matrix` in slot `slot` (its index in sums()). Matrices are known by their bytes, so
  // several may share a slot (gate and up stored as one).
  void watch(const Matrix& matrix, size_t slot);
  const std::vector<Sums>& sums() const { return sums_; }

  std::string_view name() const override { return inner_.name(); }
  Buffer allocate(int64_t bytes) override { return inner_.allocate(bytes); }
  Workspace& workspace() override { return inner_.workspace(); }
  Matrix place(const Matrix& matrix) override { return inner_.place(matrix); }
  void begin(const Label& label) override { inner_.begin(label); }
  void end() override { inner_.end(); }
  void join() override { inner_.join(); }
  StatusReport take_status() override { return inner_.take_status(); }

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

 private:
  void observe(const Linear& op);
  void observe(const GroupedLinear& op);
  void observe(const Projections& op);
  void observe(const ExpertLinear& op);
  template <typename Op>
  void observed(const Op& op);
  Sums* slot_of(const Matrix& matrix);
  void add_rows(const Matrix& matrix, const Tensor& x);

  Backend& inner_;
  std::unordered_map<const std::byte*, size_t> slots_;
  std::vector<Sums> sums_;
};

}  // namespace synod
