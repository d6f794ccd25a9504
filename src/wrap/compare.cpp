#include "wrap/compare.h"

#include <cmath>
#include <cstring>

#include "ops/visitor.h"
#include "quant/codec.h"

namespace synod {
namespace {

// One contiguous run of values that an op writes.
struct Output {
  std::string_view role;
  std::byte* data;
  DType type;
  int64_t n;  // values

  int64_t bytes() const { return row_bytes(type, n); }
};

struct OutputLister : OperandVisitor {
  std::vector<Output> outputs;

  void out(std::string_view role, const Tensor& t) {
    for (int64_t r = 0; r < t.rows(); ++r) outputs.push_back({role, t.row(r), t.type, t.inner()});
  }
  void inout(std::string_view role, const Tensor& t) { out(role, t); }

  // The cache rows of the batch, `tokens_per_row` tokens each.
  void cache(const CacheRows& rows, const BatchView& batch, int64_t tokens_per_row) {
    for (int64_t s = 0; s < batch.n_sequences(); ++s) {
      const int64_t first = batch.past[static_cast<size_t>(s)] / tokens_per_row;
      for (int64_t r = first; r < batch.total(s) / tokens_per_row; ++r) {
        outputs.push_back({"rows", rows.row(s, r), rows.type, rows.row_dim});
      }
    }
  }
};

template <typename Op>
std::vector<Output> outputs_of(const Op& op) {
  OutputLister lister;
  op.visit(lister);
  if constexpr (std::is_same_v<Op, CacheWrite>) lister.cache(op.rows, *op.batch, op.tokens_per_row);
  if constexpr (std::is_same_v<Op, Compress>) lister.cache(op.rows, *op.batch, op.ratio);
  return lister.outputs;
}

using Snapshot = std::vector<std::vector<std::byte>>;

Snapshot save(const std::vector<Output>& outputs) {
  Snapshot copies;
  for (const Output& o : outputs) copies.emplace_back(o.data, o.data + o.bytes());
  return copies;
}

void restore(const std::vector<Output>& outputs, const Snapshot& copies) {
  for (size_t i = 0; i < outputs.size(); ++i)
    std::memcpy(outputs[i].data, copies[i].data(), copies[i].size());
}

std::vector<float> values(DType type, const std::byte* data, int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  if (type == DType::kI32) {
    const auto* ids = reinterpret_cast<const int32_t*>(data);
    std::copy(ids, ids + n, v.begin());
  } else {
    decode(type, data, n, v.data());
  }
  return v;
}

// By how much a value is out of bounds; positive is a divergence.
float excess(float got, float expected, float abs_tolerance, float rel_tolerance) {
  if (got == expected || (std::isnan(got) && std::isnan(expected))) return 0.0F;
  const float e = std::fabs(got - expected) - (abs_tolerance + rel_tolerance * std::fabs(expected));
  return std::isfinite(e) ? e : INFINITY;  // one of them is not finite
}

}  // namespace

Compare::Compare(Backend& subject, Backend& reference, float abs_tolerance, float rel_tolerance)
    : subject_(subject),
      reference_(reference),
      abs_tolerance_(abs_tolerance),
      rel_tolerance_(rel_tolerance) {}

void Compare::begin(const Label& label) {
  labels_.push_back(label);
  subject_.begin(label);
  reference_.begin(label);
}

void Compare::end() {
  reference_.end();
  subject_.end();
  labels_.pop_back();
}

Backend::StatusReport Compare::take_status() {
  static_cast<void>(reference_.take_status());
  return subject_.take_status();
}

// The reference runs in place first and its outputs are taken aside: operands that alias (in-place ops) need
// no rebinding, and the subject sees the inputs as they were.
template <typename Op>
void Compare::compared(const Op& op) {
  const int64_t index = n_ops_++;
  if (first_) return subject_.run(op);
  const std::vector<Output> outputs = outputs_of(op);
  const Snapshot before = save(outputs);
  reference_.run(op);
  reference_.join();
  const Snapshot expected = save(outputs);
  restore(outputs, before);
  subject_.run(op);
  subject_.join();

  float worst = 0.0F;
  int64_t element = 0;  // of the operand
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Output& o = outputs[i];
    if (i > 0 && outputs[i - 1].role != o.role) element = 0;
    const std::vector<float> got = values(o.type, o.data, o.n),
                             want = values(o.type, expected[i].data(), o.n);
    const bool exact = o.type == DType::kI32;
    for (size_t j = 0; j < got.size(); ++j, ++element) {
      const float e = excess(got[j], want[j], exact ? 0.0F : abs_tolerance_, exact ? 0.0F : rel_tolerance_);
      if (e <= worst) continue;
      worst = e;
      const Label label = labels_.empty() ? Label{} : labels_.back();
      first_ = {index, fmt::format("{}: {}.{}", label.text(), Op::kName, o.role), element, got[j], want[j]};
    }
  }
}

#define SYNOD_PRIMITIVE(Op) \
  void Compare::run(const Op& op) { compared(op); }
#define SYNOD_FUSED(Op) \
  void Compare::run(const Op& op) { compared(op); }
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod
