#include "cuda/step.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

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

void StagingBlock::download() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.used > 0) device_.download(chunk.base.host, chunk.base.device, chunk.used);
  }
}

Step::Step(Device& device, const WeightStore& weights)
    : device_(device), weights_(weights), inputs_(device, 2 << 20), outputs_(device, 4 << 20) {
  begin();
  clear_status();
}
Step::~Step() = default;

void Step::add_device_range(const std::byte* begin, int64_t bytes) {
  ranges_[begin] = bytes;
  for (Operand& o : operands_) o.fixed = false;
}
void Step::remove_device_range(const std::byte* begin) {
  ranges_.erase(begin);
  last_begin_ = last_end_ = nullptr;
  announced_.reset();  // ops of the last step may use it
  for (Operand& o : operands_) o.fixed = false;
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

// Grids follow the longest sequence in powers of two.
uint64_t length_bucket(int64_t longest) {
  return std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(longest, 1)));
}

int64_t longest_of(const BatchView& batch) {
  int64_t longest = 0;
  for (int64_t s = 0; s < batch.n_sequences(); ++s) longest = std::max(longest, batch.total(s));
  return longest;
}

// Room to grow, so that a table keeps its place while a sequence gets longer.
int64_t table_pages(std::span<const RowTable> tables) {
  size_t longest = 8;
  for (const RowTable& table : tables) longest = std::max(longest, table.pages.size());
  return static_cast<int64_t>(std::bit_ceil(longest));
}

void copy_rows(const Tensor& t, std::byte* to) {
  if (t.is_contiguous()) {
    std::memcpy(to, t.data, static_cast<size_t>(t.bytes()));
    return;
  }
  const int64_t row = row_bytes(t.type, t.inner());
  for (int64_t r = 0; r < t.rows(); ++r) std::memcpy(to + r * row, t.row(r), static_cast<size_t>(row));
}

}  // namespace

const Step::HostOutput* Step::find_output(const void* host) const {
  const auto it = std::ranges::find(host_outputs_, host, [](const HostOutput& o) { return o.host.data; });
  return it == host_outputs_.end() ? nullptr : &*it;
}

const Step::HostInput* Step::find_input(const Tensor& t) const {
  // Host memory may be reused within a step: the same address counts only with the same bytes.
  const auto it = std::ranges::find_if(host_inputs_, [&](const HostInput& i) {
    return i.host == t.data && i.bytes == t.bytes() && t.is_contiguous() &&
           std::memcmp(i.slot.host, t.data, static_cast<size_t>(i.bytes)) == 0;
  });
  return it == host_inputs_.end() ? nullptr : &*it;
}

std::byte* Step::resolve(const Tensor& t, bool written, bool keep_contents) {
  if (n_operands_ == operands_.size()) operands_.emplace_back();
  Operand& o = operands_[n_operands_++];
  if (o.fixed && o.data == t.data) return o.device;
  o.data = t.data;
  o.fixed = true;
  if (on_device(t.data)) return o.device = t.data;
  if (!written && find_output(t.data) == nullptr && find_input(t) == nullptr) {
    o.device = const_cast<std::byte*>(weights_.find_constant(t.data));
    if (o.device != nullptr) return o.device;
  }
  o.fixed = false;
  return o.device = written ? resolve_output(t, keep_contents) : resolve_input(t);
}

std::byte* Step::resolve_input(const Tensor& t) {
  if (const HostOutput* output = find_output(t.data)) return output->slot.device;
  if (const HostInput* input = find_input(t)) return input->slot.device;
  const StagingBlock::Slot slot = inputs_.take(t.bytes());
  copy_rows(t, slot.host);
  host_inputs_.push_back({t.data, slot, t.bytes()});
  return slot.device;
}

std::byte* Step::resolve_output(const Tensor& t, bool keep_contents) {
  if (const HostOutput* output = find_output(t.data)) return output->slot.device;
  const StagingBlock::Slot slot = keep_contents ? inputs_.take(t.bytes()) : outputs_.take(t.bytes());
  if (keep_contents) copy_rows(t, slot.host);
  host_outputs_.push_back({t, slot, keep_contents});
  return slot.device;
}

const Step::BatchEntry& Step::resolve_batch(const BatchView* view) {
  for (size_t i = 0; i < n_batches_; ++i) {
    if (batches_[i].callers == view) return batches_[i];
  }
  if (n_batches_ == batches_.size()) batches_.emplace_back();
  BatchEntry& entry = batches_[n_batches_++];
  entry.callers = view;
  entry.own = *view;
  entry.longest = longest_of(*view);
  const int64_t n = view->n_tokens(), n_sequences = view->n_sequences();
  const auto slot = inputs_.take((2 * n + 2 * n_sequences + 1) * static_cast<int64_t>(sizeof(int32_t)));
  const auto* device = reinterpret_cast<const int32_t*>(slot.device);
  entry.host = slot.host;
  fill(*view, slot.host);
  entry.arrays = {.position = device,
                  .sequence = device + n,
                  .past = device + 2 * n,
                  .row_start = device + 2 * n + n_sequences,
                  .n_tokens = static_cast<int32_t>(n),
                  .n_sequences = static_cast<int32_t>(n_sequences)};
  return entry;
}

void Step::fill(const BatchView& batch, std::byte* host) {
  const int64_t n = batch.n_tokens(), n_sequences = batch.n_sequences();
  auto* position = reinterpret_cast<int32_t*>(host);
  int32_t *sequence = position + n, *past = position + 2 * n, *start = past + n_sequences;
  for (int64_t s = 0; s < n_sequences; ++s) {
    const auto i = static_cast<size_t>(s);
    past[s] = static_cast<int32_t>(batch.past[i]);
    start[s] = static_cast<int32_t>(batch.row_start[i]);
    for (int64_t t = batch.row_start[i]; t < batch.row_start[i + 1]; ++t) {
      sequence[t] = static_cast<int32_t>(s);
      position[t] = static_cast<int32_t>(batch.past[i] + t - batch.row_start[i]);
    }
  }
  start[n_sequences] = static_cast<int32_t>(n);
}

const Step::TableEntry& Step::resolve_rows(const CacheRows& rows, int64_t n_sequences) {
  // Rows are mostly read soon after they were written.
  for (size_t i = n_tables_; i-- > 0;) {
    if (tables_[i].callers == rows.sequences.data()) return tables_[i];
  }
  if (n_tables_ == tables_.size()) tables_.emplace_back();
  TableEntry& entry = tables_[n_tables_++];
  entry.callers = rows.sequences.data();
  entry.own.assign(rows.sequences.begin(), rows.sequences.end());
  entry.index = 0;
  if (announced_) {  // tables are mostly used in their order
    const std::vector<const RowTable*>& all = announced_->tables;
    const size_t hint = n_tables_ < 2 ? 0 : tables_[n_tables_ - 2].index;
    auto it = std::find(all.begin() + static_cast<std::ptrdiff_t>(std::min(hint, all.size())), all.end(),
                        rows.sequences.data());
    if (it == all.end()) it = std::ranges::find(all, rows.sequences.data());
    entry.index = static_cast<size_t>(it - all.begin());
  }
  const int64_t pages = table_pages(rows.sequences);
  const auto slot = inputs_.take(n_sequences * pages * static_cast<int64_t>(sizeof(std::byte*)));
  entry.host = slot.host;
  fill(rows.sequences.first(static_cast<size_t>(n_sequences)), pages, slot.host);
  entry.table = {.pages = reinterpret_cast<std::byte* const*>(slot.device),
                 .pages_per_seq = pages,
                 .row_bytes = rows.row_bytes,
                 .rows_per_page = static_cast<int32_t>(rows.rows_per_page),
                 .row_dim = static_cast<int32_t>(rows.row_dim),
                 .dtype = static_cast<int32_t>(rows.type)};
  return entry;
}

void Step::fill(std::span<const RowTable> tables, int64_t pages, std::byte* host) {
  auto* to = reinterpret_cast<std::byte**>(host);
  for (const RowTable& table : tables) {
    std::byte** end = std::copy(table.pages.begin(), table.pages.end(), to);
    to += pages;
    std::fill(end, to, nullptr);
  }
}

std::vector<Tensor> Step::operands_of(const StepCall& call) {
  std::vector<Tensor> operands(call.operands.begin(), call.operands.end());
  operands.push_back(call.batch->ids);
  operands.push_back(call.batch->positions);
  return operands;
}

void Step::announce(const StepCall& call) {
  if (ended_) begin();
  announced_ = {.model = call.model,
                .kind = call.kind,
                .batch = call.batch,
                .row_start = {call.batch->row_start.begin(), call.batch->row_start.end()},
                .operands = operands_of(call),
                .tables = {}};
  for (const std::vector<RowTable>& table : call.tables) announced_->tables.push_back(table.data());
}

// Which operand of the announced call this memory of the host is.
std::optional<size_t> Step::announced_operand(const std::byte* host, int64_t bytes) const {
  const std::vector<Tensor>& operands = announced_->operands;
  const auto it = std::ranges::find_if(operands, [&](const Tensor& t) {
    return t.rank > 0 && t.data == host && t.bytes() == bytes && t.is_contiguous();
  });
  if (it == operands.end()) return std::nullopt;
  return static_cast<size_t>(it - operands.begin());
}

// Whether the last step, as launched, serves this call.
bool Step::alike(const StepCall& call, std::span<const Tensor> operands) const {
  if (!ended_ || n_ops_ == 0 || !announced_) return false;
  const Announced& last = *announced_;
  if (last.model != call.model || last.kind != call.kind || last.tables.size() != call.tables.size() ||
      !std::ranges::equal(last.row_start, call.batch->row_start)) {
    return false;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const Tensor &a = last.operands[i], &b = operands[i];
    if (a.type != b.type || a.rank != b.rank || a.shape != b.shape || a.stride != b.stride) return false;
  }
  for (const HostInput& input : host_inputs_) {
    if (!announced_operand(input.host, input.bytes)) return false;
  }
  for (const HostOutput& output : host_outputs_) {
    if (output.is_input || !announced_operand(output.host.data, output.host.bytes())) return false;
  }
  for (size_t i = 0; i < n_batches_; ++i) {
    if (batches_[i].callers != last.batch) return false;
    if (length_bucket(longest_of(*call.batch)) != length_bucket(batches_[i].longest)) return false;
  }
  for (size_t i = 0; i < n_tables_; ++i) {
    if (tables_[i].index >= call.tables.size()) return false;
    if (table_pages(call.tables[tables_[i].index]) != tables_[i].table.pages_per_seq) return false;
  }
  return true;
}

bool Step::repeat(const StepCall& call) {
  const std::vector<Tensor> operands = operands_of(call);
  if (!alike(call, operands)) return false;
  for (HostInput& input : host_inputs_) {
    const Tensor& operand = operands[*announced_operand(input.host, input.bytes)];
    copy_rows(operand, input.slot.host);
    input.host = operand.data;
  }
  for (HostOutput& output : host_outputs_) {
    output.host = operands[*announced_operand(output.host.data, output.host.bytes())];
  }
  for (size_t i = 0; i < n_batches_; ++i) {
    BatchEntry& entry = batches_[i];
    entry.callers = call.batch;
    entry.own = *call.batch;
    entry.longest = longest_of(*call.batch);
    fill(*call.batch, entry.host);
  }
  for (size_t i = 0; i < n_tables_; ++i) {
    TableEntry& entry = tables_[i];
    const std::vector<RowTable>& table = call.tables[entry.index];
    entry.callers = table.data();
    std::ranges::copy(table, entry.own.begin());
    fill(table, entry.table.pages_per_seq, entry.host);
  }
  ended_ = false;
  announce(call);
  repeating_ = true;
  return true;
}

const Step::BatchEntry& Step::entry(const BatchView* own) const {
  const auto it = std::ranges::find(batches_, own, [](const BatchEntry& e) { return &e.own; });
  SYNOD_ASSERT(it != batches_.end());
  return *it;
}

CacheTable Step::table(const CacheRows& rows) const {
  if (!rows) return {};
  const auto it =
      std::ranges::find(tables_, rows.sequences.data(), [](const TableEntry& e) { return e.own.data(); });
  SYNOD_ASSERT(it != tables_.end());
  return it->table;
}

// Resolves the operands of an op and writes it down as words that tell it from any other.
struct KeyOperands : OperandVisitor {
  Step& step;
  const BatchView* batch = nullptr;
  std::array<uint64_t, 160> words;  // the widest op has five tensors, four matrices and some values
  size_t n = 0;
  explicit KeyOperands(Step& s) : step(s) {}

  template <typename... T>
  void add(const T&... values) {
    SYNOD_ASSERT(n + (words_of<T>() + ...) <= words.size());
    (append(values), ...);
  }
  template <typename T>
  static constexpr size_t words_of() {
    return (sizeof(T) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  }
  template <typename T>
  void append(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    words[n + words_of<T>() - 1] = 0;
    std::memcpy(&words[n], &value, sizeof(T));
    n += words_of<T>();
  }
  void put(const Tensor& t, const std::byte* device) {
    add(device, static_cast<uint64_t>(t.type) << 32 | static_cast<uint64_t>(t.rank));
    if (t.rank <= 2) {
      add(t.shape[0], t.shape[1], t.stride[0]);
    } else {
      add(t.shape, t.stride);
    }
  }
  void in(std::string_view, const Tensor& t) { put(t, step.resolve(t, false, false)); }
  void out(std::string_view, const Tensor& t) { put(t, step.resolve(t, true, false)); }
  void inout(std::string_view, const Tensor& t) { put(t, step.resolve(t, true, true)); }
  void weight(std::string_view, const Matrix& m) {
    add(m.data, m.n_out, m.n_in, static_cast<uint64_t>(m.storage) << 32 | static_cast<uint64_t>(m.type));
  }
  void rows_of(std::string_view, const Matrix& m, int64_t) { weight({}, m); }
  void experts(std::string_view, std::span<const Matrix> e, int64_t, int64_t) {
    add(e.size());
    if (!e.empty()) weight({}, e[0]);
  }
  void rows(const CacheRows& r) {
    if (!r) return;
    const Step::TableEntry& entry = step.resolve_rows(r, batch->n_sequences());
    const CacheTable& t = entry.table;
    add(entry.own.data(), t.pages, t.pages_per_seq, t.row_bytes, t.rows_per_page, t.row_dim, t.dtype);
  }
  void cache_in(std::string_view, const CacheRows& r, const BatchView&, int64_t, int64_t) { rows(r); }
  void cache_out(std::string_view, const CacheRows& r, int64_t) { rows(r); }
  void value(std::string_view, double v) { add(v); }
};

// Sets the operands of an op that the step owns, so that the const of visit() may be taken off, to what
// KeyOperands resolved them to.
struct PlaceOperands : OperandVisitor {
  Step& step;
  size_t next;  // tensor operand
  PlaceOperands(Step& s, size_t first) : step(s), next(first) {}

  void put(const Tensor& t) {
    auto& own = const_cast<Tensor&>(t);
    std::byte* device = step.operands_[next++].device;
    const bool moved = own.data != device;
    own.data = device;
    // Staged copies are contiguous.
    if (moved && !t.is_contiguous()) {
      own = Tensor::contiguous(device, t.type,
                               std::span<const int64_t>(t.shape.data(), static_cast<size_t>(t.rank)), t.name);
    }
  }
  void in(std::string_view, const Tensor& t) { put(t); }
  void out(std::string_view, const Tensor& t) { put(t); }
  void inout(std::string_view, const Tensor& t) { put(t); }
  void rows(const CacheRows& r) {
    if (r) const_cast<CacheRows&>(r).sequences = step.resolve_rows(r, 0).own;
  }
  void cache_in(std::string_view, const CacheRows& r, const BatchView&, int64_t, int64_t) { rows(r); }
  void cache_out(std::string_view, const CacheRows& r, int64_t) { rows(r); }
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

template <typename Op>
void visit_operands(const Op& op, auto& visitor) {
  op.visit(visitor);
  if constexpr (std::is_same_v<Op, RouteHash>) visitor.in("table", op.table);
}

}  // namespace

template <typename Op>
void Step::record(const Op& op, uint32_t label) {
  if (ended_) begin();
  KeyOperands key(*this);
  const BatchView* own_batch = nullptr;
  key.add(Op::kName.data(), label, hidden_values(op));
  if constexpr (requires { op.batch; }) {
    const BatchEntry& entry = resolve_batch(op.batch);
    key.batch = op.batch;
    own_batch = &entry.own;
    key.add(own_batch, entry.arrays.position, entry.arrays.n_tokens, entry.arrays.n_sequences,
            length_bucket(entry.longest));
  }
  // In-place operands are inputs as well as outputs: resolved once, contents kept.
  if constexpr (std::is_same_v<Op, RmsNorm> || std::is_same_v<Op, Add> || std::is_same_v<Op, Glu> ||
                std::is_same_v<Op, RoundTrip>) {
    const auto keep = [&](const Tensor& t) {
      if (t.data == op.out.data && !on_device(t.data)) static_cast<void>(resolve_output(t, true));
    };
    if constexpr (std::is_same_v<Op, RmsNorm> || std::is_same_v<Op, RoundTrip>) keep(op.x);
    if constexpr (std::is_same_v<Op, Add>) keep(op.a), keep(op.b);
    if constexpr (std::is_same_v<Op, Glu>) keep(op.gate), keep(op.up);
  }
  const size_t first_operand = n_operands_;
  visit_operands(op, key);

  if (repeating_ && key.n <= key_.size() - key_size_ &&
      std::memcmp(&key_[key_size_], key.words.data(), key.n * sizeof(uint64_t)) == 0) {
    key_size_ += key.n;
    ++n_ops_;
    return;
  }
  if (repeating_) {
    ops_.resize(n_ops_);
    key_.resize(key_size_);
    repeating_ = false;
  }
  key_.insert(key_.end(), key.words.begin(), key.words.begin() + static_cast<std::ptrdiff_t>(key.n));
  key_size_ = key_.size();
  Op& own = std::get<Op>(ops_.emplace_back(StepOp{op, label}).op);
  ++n_ops_;
  if constexpr (requires { own.batch; }) own.batch = own_batch;
  PlaceOperands place(*this, first_operand);
  visit_operands(own, place);
}

void Step::upload() { inputs_.upload(); }

void Step::download() {
  outputs_.download();
  for (const HostOutput& o : host_outputs_) {
    if (o.is_input) device_.download(o.slot.host, o.slot.device, o.host.bytes());
  }
}

void Step::finish_downloads() {
  for (const HostOutput& o : host_outputs_) {
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

void Step::clear() { ended_ = true; }

void Step::begin() {
  ended_ = false;
  announced_.reset();
  // A step that ended early leaves what it repeated.
  ops_.resize(n_ops_);
  key_.resize(key_size_);
  n_ops_ = key_size_ = n_operands_ = n_batches_ = n_tables_ = 0;
  repeating_ = true;
  host_inputs_.clear();
  host_outputs_.clear();
  inputs_.reset();
  outputs_.reset();
  status_ = outputs_.take(kStatusBytes);
}

void Step::forget() {
  n_ops_ = key_size_ = 0;
  operands_.clear();
  begin();
  ended_ = true;
}

#define SYNOD_PRIMITIVE(Op) template void Step::record<Op>(const Op& op, uint32_t label);
#define SYNOD_FUSED(Op) template void Step::record<Op>(const Op& op, uint32_t label);
#include "ops/ops.def"
#undef SYNOD_PRIMITIVE
#undef SYNOD_FUSED

}  // namespace synod::cuda
