// RmsNorm, Glu, Add, Scale, SoftCap. Elements are independent, so how they are cut into ranges does not
// matter.
#include <cmath>

#include "cpu/cpu_backend.h"
#include "cpu/ops_parallel.h"
#include "cpu/vec_table.h"

namespace synod {
namespace {

constexpr int64_t kGrain = 8192;      // elements per item, a multiple of 16
constexpr double kStreamUs = 0.1e-3;  // microseconds per element of a copy
constexpr double kExpUs = 0.35e-3;    // per element with an exponential

// body(row, begin, end) covers `n_rows` rows of `d` elements.
template <typename Body>
void for_row_parts(cpu::Pool& pool, int64_t n_rows, int64_t d, double element_us, const Body& body) {
  if (n_rows == 0 || d == 0) return;
  const int64_t parts = (d + kGrain - 1) / kGrain;
  const int64_t rows_per_item = std::max<int64_t>(1, kGrain / d);
  cpu::for_ranges(pool, n_rows * parts, rows_per_item,
                  static_cast<double>(d) / static_cast<double>(parts) * element_us,
                  [&](int64_t first, int64_t last) {
                    for (int64_t i = first; i < last; ++i) {
                      const int64_t begin = i % parts * kGrain;
                      body(i / parts, begin, std::min(d, begin + kGrain));
                    }
                  });
}

}  // namespace

void CpuBackend::run(const RmsNorm& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const int64_t d = op.x.inner();
  const float* weight = op.weight ? op.weight.as<const float>() : nullptr;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, d));
  cpu::for_ranges(pool_, op.x.rows(), grain, static_cast<double>(d) * 2 * kStreamUs,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      const float* x = op.x.row_as<const float>(r);
                      const double mean = static_cast<double>(vec.sum_squares(x, d)) / static_cast<double>(d);
                      const auto factor = static_cast<float>(op.factor / std::sqrt(mean + op.eps));
                      vec.scale_by(x, factor, weight, d, op.out.row_as<float>(r));
                    }
                  });
}

void CpuBackend::run(const Glu& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const cpu::Gate act = op.act == Glu::Act::kSilu ? cpu::Gate::kSilu : cpu::Gate::kGeluTanh;
  for_row_parts(pool_, op.gate.rows(), op.gate.inner(), kExpUs, [&](int64_t r, int64_t begin, int64_t end) {
    float weight = 1.0F;
    if (op.row_weight) {
      const int64_t width = op.row_weight.inner();
      weight = op.row_weight.row_as<const float>(r / width)[r % width];
    }
    vec.glu(op.gate.row_as<const float>(r) + begin, op.up.row_as<const float>(r) + begin, end - begin, act,
            op.limit, weight, op.out.row_as<float>(r) + begin);
  });
}

void CpuBackend::run(const Add& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  for_row_parts(pool_, op.a.rows(), op.a.inner(), kStreamUs, [&](int64_t r, int64_t begin, int64_t end) {
    vec.add(op.a.row_as<const float>(r) + begin, op.b.row_as<const float>(r) + begin, op.factor, end - begin,
            op.out.row_as<float>(r) + begin);
  });
}

void CpuBackend::run(const Scale& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const float factor = op.by ? op.factor * op.by.as<const float>()[0] : op.factor;
  for_row_parts(pool_, op.x.rows(), op.x.inner(), kStreamUs, [&](int64_t r, int64_t begin, int64_t end) {
    float* x = op.x.row_as<float>(r) + begin;
    vec.scale_by(x, factor, nullptr, end - begin, x);
  });
}

void CpuBackend::run(const SoftCap& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  for_row_parts(pool_, op.x.rows(), op.x.inner(), kExpUs, [&](int64_t r, int64_t begin, int64_t end) {
    vec.soft_cap(op.x.row_as<float>(r) + begin, op.cap, end - begin);
  });
}

}  // namespace synod
