// The frame of the builder: order of ops, row programs, cached forms of activations. See builder_*.cpp for
// the ops.
#include "cuda/builder.h"

#include <algorithm>
#include <iterator>

#include "cuda/views.h"
#include "ops/visitor.h"

namespace synod::cuda {

namespace {

// Calls write(tensor) for what an op writes outside the cache.
template <typename Write>
struct Writes : OperandVisitor {
  Write write;
  explicit Writes(Write w) : write(std::move(w)) {}
  void out(std::string_view, const Tensor& t) { write(t); }
  void inout(std::string_view, const Tensor& t) { write(t); }
};

}  // namespace

template <typename Visit>
void Builder::visit_writes(size_t i, Visit&& visit) const {
  std::visit(
      [&](const auto& op) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(op)>, std::monostate>) {
          Writes writes(visit);
          op.visit(writes);
        }
      },
      step_.ops()[i].op);
}

Builder::Builder(const Step& step, WeightStore& weights, Scratch& scratch, uint32_t* status,
                 uint32_t* tickets)
    : step_(step), weights_(weights), scratch_(scratch), status_(status), tickets_(tickets) {
  for (size_t i = 0; i < step_.ops().size(); ++i) {
    visit_writes(i, [&](const Tensor& t) {
      if (!step_.on_device(t.data)) written_outside_.push_back(memory_of(t));
    });
  }
}

Builder::~Builder() {
  end_op();
  for (const Cached& c : cached_) {
    for (std::byte* data : c.memory) scratch_.give_back(data);
  }
}

std::vector<PlannedLaunch> Builder::build() {
  const std::span<const StepOp> ops = step_.ops();
  for (index_ = 0; index_ < ops.size();) {
    label_ = ops[index_].label;
    size_t taken = 0;
    for (const auto fuse : {&Builder::fuse_hyper, &Builder::fuse_heads, &Builder::fuse_states,
                            &Builder::fuse_compress, &Builder::fuse_attention, &Builder::fuse_products}) {
      if (taken == 0) taken = (this->*fuse)();
    }
    if (taken == 0) {
      std::visit([&](const auto& op) { run(op); }, ops[index_].op);
      taken = 1;
    }
    for (size_t i = index_; i < index_ + taken; ++i) visit_writes(i, [&](const Tensor& t) { wrote(t); });
    end_op();
    std::ranges::move(made_, std::back_inserter(cached_));
    made_.clear();
    index_ += taken;
  }
  flush_rows();
  return std::move(launches_);
}

bool Builder::writes(size_t i, const Tensor& rows) const {
  bool overlap = false;
  visit_writes(i, [&](const Tensor& t) { overlap = overlap || memory_of(t).overlaps(memory_of(rows)); });
  return overlap;
}

StatusWord Builder::status() const { return {.bits = status_, .label = label_}; }

void Builder::emit(Launch launch) {
  flush_rows();
  launches_.push_back({std::move(launch), label_});
}

void Builder::flush_rows() {
  if (rows_.n_steps == 0) return;
  Launch launch = row_program(rows_);
  rows_.n_steps = 0;
  launches_.push_back({std::move(launch), rows_label_});
}

void Builder::append_row_step(const RowStep& step, int64_t n_rows, int32_t d) {
  if (n_rows == 0 || d == 0) return;
  constexpr int32_t kWidest = 8192;  // held in registers
  const auto fits = [&] {
    if (rows_.n_steps == 0 || rows_.n_steps == kMaxRowSteps || rows_.n_rows != n_rows || rows_.d != d)
      return false;
    if (d > kWidest) return false;
    // Rows of a program run at the same time: two tensors must be one and the same, or apart.
    for (const View* a : {&step.dst, &step.a, &step.b}) {
      if (a->p == nullptr) continue;
      for (int s = 0; s < rows_.n_steps; ++s) {
        for (const View* b : {&rows_.steps[s].dst, &rows_.steps[s].a, &rows_.steps[s].b}) {
          if (b->p == nullptr || same(*a, *b)) continue;
          if (extent_of(*a, n_rows).overlaps(extent_of(*b, n_rows))) return false;
        }
      }
    }
    RowProgram longer = rows_;
    longer.steps[longer.n_steps++] = step;
    return static_cast<int64_t>(row_slots(longer)) * d * 4 <= kMostRowBytes;
  };
  if (!fits()) {
    flush_rows();
    rows_ = {};
    rows_.n_rows = n_rows;
    rows_.d = d;
    rows_label_ = label_;
  }
  rows_.steps[rows_.n_steps++] = step;
}

const DeviceMatrix& Builder::device(const Matrix& m, bool as_float) {
  if (const DeviceMatrix* placed = weights_.find(m)) return *placed;
  return weights_.place_extra({&m, 1}, as_float);
}
const DeviceMatrix& Builder::device(std::span<const Matrix> experts) {
  if (const DeviceMatrix* placed = weights_.find(experts)) return *placed;
  return weights_.place_extra(experts, false);
}

Builder::Cached* Builder::find(const Rows& x, bool half, bool low) {
  for (Cached& c : cached_) {
    if (!same(c.view, x.view) || c.n != x.n) continue;
    if (half ? c.halves.high != nullptr && (!low || c.halves.low != nullptr) : c.digits.p != nullptr)
      return &c;
  }
  return nullptr;
}

Builder::Cached& Builder::remember(const Rows& x) {
  const Extent extent = extent_of(x.view, x.n);
  Cached& c = cached_.emplace_back();
  c.begin = extent.begin, c.end = extent.end, c.view = x.view, c.n = x.n;
  return c;
}

DigitRows Builder::digits(const Rows& x) {
  if (const Cached* c = find(x, false, false)) return c->digits;
  SYNOD_ASSERT(x.view.d % 32 == 0);
  Cached& c = remember(x);
  c.digits.stride = digit_row_bytes(x.view.d);
  c.memory.push_back(scratch_.take(x.n * c.digits.stride));
  c.digits.p = reinterpret_cast<uint8_t*>(c.memory.back());
  const DigitRows made = c.digits;
  append_row_step({.kind = RowStep::kDigits, .a = x.view, .digits = made}, x.n, x.view.d);
  return made;
}

HalfRows Builder::halves(const Rows& x, bool low) {
  if (const Cached* c = find(x, true, low)) return c->halves;
  Cached& c = remember(x);
  c.halves.stride = (x.view.d + 31) / 32 * 32;
  const auto take = [&](int64_t bytes) {
    c.memory.push_back(scratch_.take(bytes));
    return c.memory.back();
  };
  c.halves.high = reinterpret_cast<uint16_t*>(take(x.n * c.halves.stride * 2));
  if (low) c.halves.low = reinterpret_cast<uint16_t*>(take(x.n * c.halves.stride * 2));
  c.halves.scale = reinterpret_cast<float*>(take(x.n * 4));
  const HalfRows made = c.halves;
  emit(to_half({.x = x.view, .n_rows = x.n, .out = made}));
  return made;
}

void Builder::wrote(const Tensor& t) {
  const Extent extent = memory_of(t);
  if (extent.begin != extent.end) wrote(extent.begin, extent.end);
}

void Builder::wrote(const std::byte* begin, const std::byte* end) {
  const Extent written{begin, end};
  std::erase_if(cached_, [&](const Cached& c) {
    if (!written.overlaps({c.begin, c.end})) return false;
    for (std::byte* data : c.memory) scratch_.give_back(data);
    return true;
  });
}

template <typename T>
T* Builder::temporary(int64_t count) {
  temporaries_.push_back(scratch_.take(count * static_cast<int64_t>(sizeof(T))));
  return reinterpret_cast<T*>(temporaries_.back());
}
template float* Builder::temporary<float>(int64_t);
template int32_t* Builder::temporary<int32_t>(int64_t);
template uint64_t* Builder::temporary<uint64_t>(int64_t);

void Builder::end_op() {
  for (std::byte* data : temporaries_) {
    wrote(data, data + 1);  // forms of temporaries end with them
    scratch_.give_back(data);
  }
  temporaries_.clear();
}

}  // namespace synod::cuda
