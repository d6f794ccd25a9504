// The CPU backend: stored weights straight from the mapped file, activations quantized once per input,
// threads. Its sums follow the contract in cpu/kernels.h, so results do not depend on chunking, batch,
// threads or instruction set. Ops it has no kernel for run on a fallback backend (the reference), which the
// caller provides.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cpu/ceilings.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"
#include "ops/backend.h"

namespace synod {

struct CpuOptions {
  int n_threads = 0;          // 0 = cpu::default_threads()
  std::string_view isa;       // "" = best; "scalar", "avx2", "avx512"
  int64_t moe_threshold = 0;  // rows per expert from which experts run grouped; 0 = measured default
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::unique_ptr<Backend> fallback, const CpuOptions& options);
  ~CpuBackend() override;

  std::string_view name() const override { return "cpu"; }
  Buffer allocate(int64_t bytes) override { return Buffer::host(bytes); }
  Workspace& workspace() override { return workspace_; }
  void begin(const Label& label) override;
  void end() override;
  StatusReport take_status() override;

  std::string_view isa() const { return kernels_.name; }
  int n_threads() const { return pool_.n_threads(); }
  // See cpu/ceilings.h.
  cpu::Ceilings measure_ceilings(std::span<const std::span<const std::byte>> memory) {
    return cpu::measure_ceilings(pool_, kernels_.name, memory);
  }

#define SYNOD_PRIMITIVE(Op) void run(const Op& op) override;
#define SYNOD_FUSED(Op) void run(const Op& op) override;
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

 private:
  void raise(Status status);  // from any thread
  void take_fallback_status();
  // Runs an op that has no kernel here on the fallback.
  template <typename Op>
  void delegate(const Op& op) {
    fallback_->run(op);
    take_fallback_status();
  }

  struct Scratch;  // per thread and shared buffers that only grow
  std::unique_ptr<Backend> fallback_;
  const cpu::KernelTable& kernels_;
  cpu::Pool pool_;
  CpuOptions options_;
  Workspace workspace_;
  std::vector<Label> labels_;
  std::atomic<uint32_t> status_bits_{0};
  Label status_where_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace synod
