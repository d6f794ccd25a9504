#include "cuda/step.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "cuda/weight_store.h"
#include "ops/visitor.h"

namespace synod::cuda {

StagingBlock::~StagingBlock() {
  for (const Chunk& chunk : chunks_) {
    device_.release_pinned(chunk.base.host);
    device_.release(chunk.base.device);
  }
}

StagingBlock::Slot StagingBlock::take(int64_t bytes) {
  constexpr int64_t kAlign = 64;
  bytes = std::max<int64_t>(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
  while (current_ < chunks_.size() && chunks_[current_].used + bytes > chunks_[current_].bytes) ++current_;
  if (current_ == chunks_.size()) {
    Chunk chunk;
    chunk.bytes = std::max(bytes, min_chunk_);
    chunk.base = {device_.allocate_pinned(chunk.bytes), device_.allocate(chunk.bytes)};
    chunks_.push_back(chunk);
  }
  Chunk& chunk = chunks_[current_];
  const Slot slot{chunk.base.host + chunk.used, chunk.base.device + chunk.used};
  chunk.used += bytes;
  return slot;
}

void StagingBlock::reset() {
  for (Chunk& chunk : chunks_) chunk.used = 0;
  current_ = 0;
}

void StagingBlock::upload() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.used > 0) device_.upload(chunk.base.device, chunk.base.host, chunk.used);
  }
}

Step::Step(Device& device, const WeightStore& weights)
    : device_(device), weights_(weights), inputs_(device, 2 << 20), outputs_(device, 4 << 20) {}
Step::~Step() = default;

void Step::add_device_range(const std::byte* begin, int64_t bytes) { ranges_[begin] = bytes; }
void Step::remove_device_range(const std::byte* begin) {
  ranges_.erase(begin);
  last_begin_ = last_end_ = nullptr;
}

bool Step::on_device(const void* p) const {
  const auto* at = static_cast<const std::byte*>(p);
  if (at >= last_begin_ && at < last_end_) return true;
  auto it = ranges_.upper_bound(at);
  if (it == ranges_.begin()) return false;
  --it;
  if (at >= it->first + it->second) return false;
  last_begin_ = it->first, last_end_ = it->first + it->second;
  return true;
}

namespace {

void copy_rows(const Tensor& t, std::byte* to) {
  if (t.is_contiguous()) {
    std::memcpy(to, t.data, static_cast<size_t>(t.bytes()));
    return;
  }
  const int64_t row = row_bytes(t.type, t.inner());
  for (int64_t r = 0; r < t.rows(); ++r) std::memcpy(to + r * row, t.row(r), static_cast<size_t>(row));
}

}  // namespace

std::byte* Step::resolve_input(const Tensor& t) {
  if (on_device(t.data)) return t.data;
  if (const auto it = host_outputs_.find(t.data); it != host_outputs_.end()) {
    return output_list_[it->second].slot.device;
  }
  if (const std::byte* constant = weights_.find_constant(t.data)) return const_cast<std::byte*>(constant);
  // Host memory may be reused within a step: the same address counts only with the same bytes.
  const int64_t bytes = t.bytes();
  const auto it = host_inputs_.find(t.data);
  if (it != host_inputs_.end() && it->second.bytes == bytes && t.is_contiguous() &&
      std::memcmp(it->second.slot.host, t.data, static_cast<size_t>(bytes)) == 0) {
    return it->second.slot.device;
  }
  const StagingBlock::Slot slot = inputs_.take(bytes);
  copy_rows(t, slot.host);
  host_inputs_[t.data] = {slot, bytes};
  return slot.device;
}

std::byte* Step::resolve_output(const Tensor& t, bool keep_contents) {
  if (on_device(t.data)) return t.data;
  if (const auto it = host_outputs_.find(t.data); it != host_outputs_.end()) {
    return output_list_[it->second].slot.device;
  }
  StagingBlock::Slot slot = keep_contents ? inputs_.take(t.bytes()) : outputs_.take(t.bytes());
  if (keep_contents) copy_rows(t, slot.host);
  host_outputs_[t.data] = output_list_.size();
  output_list_.push_back({t, slot});
  return slot.device;
}

void Step::resolve_batch(const BatchView* view) {
  if (batches_.contains(view)) return;
  BatchEntry& entry = batches_[view];
  const int64_t n = view->n_tokens(), n_sequences = view->n_sequences();
  const auto slot = inputs_.take((2 * n + 2 * n_sequences + 1) * static_cast<int64_t>(sizeof(int32_t)));
  auto* host = reinterpret_cast<int32_t*>(slot.host);
  const auto* device = reinterpret_cast<const int32_t*>(slot.device);
  int32_t *position = host, *sequence = host + n, *past = host + 2 * n, *start = past + n_sequences;
  entry.arrays = {.position = device,
                  .sequence = device + n,
                  .past = device + 2 * n,
                  .row_start = device + 2 * n + n_sequences,
                  .n_tokens = static_cast<int32_t>(n),
                  .n_sequences = static_cast<int32_t>(n_sequences)};
  for (int64_t s = 0; s < n_sequences; ++s) {
    const auto i = static_cast<size_t>(s);
    past[s] = static_cast<int32_t>(view->past[i]);
    start[s] = static_cast<int32_t>(view->row_start[i]);
    entry.longest = std::max(entry.longest, view->total(s));
    for (int64_t t = view->row_start[i]; t < view->row_start[i + 1]; ++t) {
      sequence[t] = static_cast<int32_t>(s);
      position[t] = static_cast<int32_t>(view->past[i] + t - view->row_start[i]);
    }
  }
  start[n_sequences] = static_cast<int32_t>(n);
}

void Step::resolve_rows(const CacheRows& rows, int64_t n_sequences) {
  if (!rows || tables_.contains(rows.sequences.data())) return;
  size_t longest = 1;
  for (const RowTable& table : rows.sequences) longest = std::max(longest, table.pages.size());
  // Room to grow, so that a table keeps its place while a sequence gets longer.
  const auto pages = static_cast<int64_t>(std::bit_ceil(std::max<size_t>(longest, 8)));
  const auto slot = inputs_.take(n_sequences * pages * static_cast<int64_t>(sizeof(std::byte*)));
  auto* host = reinterpret_cast<std::byte**>(slot.host);
  for (int64_t s = 0; s < n_sequences; ++s) {
    const auto& table = rows.sequences[static_cast<size_t>(s)].pages;
    std::copy(table.begin(), table.end(), host + s * pages);
    std::fill(host + s * pages + static_cast<int64_t>(table.size()), host + (s + 1) * pages, nullptr);
  }
  tables_[rows.sequences.data()] = {.pages = reinterpret_cast<std::byte* const*>(slot.device),
                                    .pages_per_seq = pages,
                                    .row_bytes = rows.row_bytes,
                                    .rows_per_page = static_cast<int32_t>(rows.rows_per_page),
                                    .row_dim = static_cast<int32_t>(rows.row_dim),
                                    .dtype = static_cast<int32_t>(rows.type)};
}

const BatchArrays& Step::batch(const BatchView* view) const { return batches_.at(view).arrays; }
int64_t Step::longest(const BatchView* view) const { return batches_.at(view).longest; }
CacheTable Step::table(const CacheRows& rows) const {
  return rows ? tables_.at(rows.sequences.data()) : CacheTable{};
}

template <typename T>
void Step::add_key(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t at = key_.size();
  key_.resize(at + sizeof(T));
  std::memcpy(key_.data() + at, &value, sizeof(T));
}

void Step::add_key(const Tensor& t) {
  add_key(t.data);
  add_key(t.rank);
  const size_t at = key_.size(), bytes = static_cast<size_t>(t.rank) * sizeof(int64_t);
  key_.resize(at + 2 * bytes);
  std::memcpy(key_.data() + at, t.shape.data(), bytes);
  std::memcpy(key_.data() + at + bytes, t.stride.data(), bytes);
}

// Visits the operands of an op that the step owns, so that the const of visit() may be taken off.
struct ResolveOperands : OperandVisitor {
  Step& step;
  const BatchView* batch = nullptr;
  explicit ResolveOperands(Step& s) : step(s) {}

  void put(const Tensor& t, std::byte* device) {
    auto& own = const_cast<Tensor&>(t);
    const bool moved = own.data != device;
    own.data = device;
    // Staged copies are contiguous.
    if (moved && !t.is_contiguous()) {
      own = Tensor::contiguous(device, t.type,
                               std::span<const int64_t>(t.shape.data(), static_cast<size_t>(t.rank)), t.name);
    }
    step.add_key(t);
  }
  void in(std::string_view, const Tensor& t) { put(t, step.resolve_input(t)); }
  void out(std::string_view, const Tensor& t) { put(t, step.resolve_output(t, false)); }
  void inout(std::string_view, const Tensor& t) { put(t, step.resolve_output(t, true)); }
  void weight(std::string_view, const Matrix& m) {
    step.add_key(m.data), step.add_key(m.n_out), step.add_key(m.n_in);
    step.add_key(m.storage), step.add_key(m.type);
  }
  void rows_of(std::string_view, const Matrix& m, int64_t) { weight({}, m); }
  void experts(std::string_view, std::span<const Matrix> e, int64_t, int64_t) {
    if (!e.empty()) weight({}, e[0]);
  }
  void rows(const CacheRows& r) {
    if (!r) return;
    step.resolve_rows(r, batch->n_sequences());
    step.add_key(step.table(r));
  }
  void cache_in(std::string_view, const CacheRows& r, const BatchView&, int64_t, int64_t) { rows(r); }
  void cache_out(std::string_view, const CacheRows& r, int64_t) { rows(r); }
  void value(std::string_view, double v) { step.add_key(v); }
};

namespace {

// What visit() does not show: choices, and which optional operands are there.
template <typename Op>
uint64_t hidden_values(const Op&) {
  return 0;
}
uint64_t present(std::initializer_list<bool> operands) {
  uint64_t bits = 0;
  for (const bool there : operands) bits = 2 * bits + (there ? 1 : 0);
  return bits;
}
uint64_t two_floats(float a, float b) {
  return std::bit_cast<uint32_t>(a) | static_cast<uint64_t>(std::bit_cast<uint32_t>(b)) << 32;
}
uint64_t hidden_values(const Rope& op) { return static_cast<uint64_t>(op.layout); }
uint64_t hidden_values(const RmsNorm& op) { return present({bool(op.weight)}); }
uint64_t hidden_values(const Scale& op) { return present({bool(op.by)}); }
uint64_t hidden_values(const Glu& op) {
  return 2 * static_cast<uint64_t>(op.act) + present({bool(op.row_weight)});
}
uint64_t hidden_values(const RoundTrip& op) { return static_cast<uint64_t>(op.grid); }
uint64_t hidden_values(const RouteSoftmax& op) { return present({bool(op.expert_scale)}); }
uint64_t hidden_values(const CombineExperts& op) { return present({bool(op.weights), bool(op.shared)}); }
uint64_t hidden_values(const ExpertFfn& op) {
  return 4 * static_cast<uint64_t>(op.act) + present({op.round_hidden, bool(op.shared)});
}
uint64_t hidden_values(const HcMix& op) { return two_floats(op.norm_eps, op.eps); }
uint64_t hidden_values(const HcHeadMix& op) { return two_floats(op.norm_eps, op.eps); }
uint64_t hidden_values(const Attention& op) { return static_cast<uint64_t>(op.n_kv_heads); }
uint64_t hidden_values(const SparseAttention& op) {
  return present({bool(op.compressed), bool(op.selected)});
}

}  // namespace

template <typename Op>
void Step::record(const Op& op, uint32_t label) {
  ops_.push_back({op, label});
  Op& own = std::get<Op>(ops_.back().op);
  ResolveOperands resolve(*this);
  if constexpr (requires { own.batch; }) {
    resolve.batch = own.batch;
    resolve_batch(own.batch);
    // Grids follow the longest sequence in powers of two.
    add_key(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(longest(own.batch), 1))));
    add_key(batch(own.batch).position);
    add_key(batch(own.batch).n_sequences);
  }
  add_key(ops_.back().op.index());
  add_key(label);
  add_key(hidden_values(own));
  // In-place operands are inputs as well as outputs: resolved once, contents kept.
  if constexpr (std::is_same_v<Op, RmsNorm> || std::is_same_v<Op, Add> || std::is_same_v<Op, Glu> ||
                std::is_same_v<Op, RoundTrip>) {
    const auto keep = [&](const Tensor& t) {
      if (!on_device(own.out.data) && t.data == own.out.data) static_cast<void>(resolve_output(t, true));
    };
    if constexpr (std::is_same_v<Op, RmsNorm> || std::is_same_v<Op, RoundTrip>) keep(own.x);
    if constexpr (std::is_same_v<Op, Add>) keep(own.a), keep(own.b);
    if constexpr (std::is_same_v<Op, Glu>) keep(own.gate), keep(own.up);
  }
  own.visit(resolve);
  if constexpr (std::is_same_v<Op, RouteHash>) resolve.in("table", own.table);
}

void Step::upload() { inputs_.upload(); }

void Step::download() {
  for (const HostOutput& o : output_list_) device_.download(o.slot.host, o.slot.device, o.host.bytes());
}

void Step::finish_downloads() {
  for (const HostOutput& o : output_list_) {
    if (o.host.is_contiguous()) {
      std::memcpy(o.host.data, o.slot.host, static_cast<size_t>(o.host.bytes()));
      continue;
    }
    const int64_t row = row_bytes(o.host.type, o.host.inner());
    for (int64_t r = 0; r < o.host.rows(); ++r) {
      std::memcpy(o.host.row(r), o.slot.host + r * row, static_cast<size_t>(row));
    }
  }
}

void Step::clear() {
  ops_.clear();
  key_.clear();
  inputs_.reset();
  outputs_.reset();
  host_inputs_.clear();
  host_outputs_.clear();
  output_list_.clear();
  batches_.clear();
  tables_.clear();
}

#define SYNOD_PRIMITIVE(Op) template void Step::record<Op>(const Op& op, uint32_t label);
#define SYNOD_FUSED(Op) template void Step::record<Op>(const Op& op, uint32_t label);
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod::cuda
