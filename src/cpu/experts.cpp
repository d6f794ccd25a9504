// Routed experts. One schedule of slots by expert serves gate, up and down; gate and up of the same rows are
// one item that applies the activation at once; each slot has its own row of results, which are combined in
// slot order. So nothing depends on which tokens share a batch.
#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "cpu/round_fp8.h"
#include "cpu/scratch.h"
#include "cpu/vec_table.h"
#include "ops/expert_route.h"

namespace synod {
namespace cpu {

bool ExpertSchedule::assign(const Tensor& ids, int64_t n_experts) {
  const int64_t n_tokens = ids.dim(0), k = ids.dim(1);
  offsets.assign(static_cast<size_t>(n_experts) + 1, 0);
  place.assign(static_cast<size_t>(n_tokens * k), -1);
  bool in_range = true;
  const auto for_slots = [&](auto&& visit) {
    for (int64_t t = 0; t < n_tokens; ++t) {
      const int32_t* chosen = ids.row_as<const int32_t>(t);
      for (int64_t s = 0; s < k; ++s) {
        if (chosen[s] >= 0 && chosen[s] < n_experts) {
          visit(static_cast<size_t>(chosen[s]), t * k + s);
        } else {
          in_range = false;
        }
      }
    }
  };
  for_slots([&](size_t expert, int64_t) { ++offsets[expert + 1]; });
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  groups.clear();
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    if (offsets[e] == offsets[e + 1]) continue;
    groups.push_back({.expert = static_cast<int64_t>(e), .begin = offsets[e], .end = offsets[e + 1]});
  }
  slots.resize(static_cast<size_t>(offsets.back()));
  for_slots([&](size_t expert, int64_t slot) {
    place[static_cast<size_t>(slot)] = offsets[expert];
    slots[static_cast<size_t>(offsets[expert]++)] = slot;
  });
  // The longest items first, so that none is left for the end.
  std::ranges::sort(groups, [](const Group& a, const Group& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.expert < b.expert;
  });
  return in_range;
}

namespace {

int64_t bytes_per_row(const Matrix& m) { return m.n_out == 0 ? 0 : (m.bytes() + m.n_out - 1) / m.n_out; }

// Prepares the rows of `x` for every kind that the scheduled experts ask for.
void prepare_for(std::span<const Matrix> experts, const ExpertSchedule& schedule, const Tensor& x, Pool& pool,
                 const KernelTable& table, Records& records, uint32_t& prepared) {
  for (const auto& group : schedule.groups) {
    const ActivationKind kind = activation_kind(experts[static_cast<size_t>(group.expert)]);
    const uint32_t bit = 1U << static_cast<uint32_t>(kind);
    if ((prepared & bit) == 0) records.prepare(pool, table, kind, x);
    prepared |= bit;
  }
}

// Record of every scheduled slot; row_of(place) is the row of the prepared input.
template <typename RowOf>
void gather_records(std::span<const Matrix> experts, const ExpertSchedule& schedule, const Records& records,
                    const RowOf& row_of, std::vector<const std::byte*>& gathered) {
  gathered.resize(schedule.slots.size());
  for (const auto& group : schedule.groups) {
    const std::byte* const* of = records.of(activation_kind(experts[static_cast<size_t>(group.expert)]));
    for (int64_t p = group.begin; p < group.end; ++p) gathered[static_cast<size_t>(p)] = of[row_of(p)];
  }
}

void add_products(std::span<const Matrix> experts, const ExpertSchedule& schedule,
                  const std::vector<const std::byte*>& records, const std::vector<float*>& outputs,
                  int64_t call_tokens, std::vector<Product>& products) {
  products.clear();
  for (const auto& group : schedule.groups) {
    products.push_back({.weight = experts[static_cast<size_t>(group.expert)],
                        .records = records.data() + group.begin,
                        .outputs = outputs.data() + group.begin,
                        .n_tokens = group.size(),
                        .call_tokens = call_tokens});
  }
}

// Phase A of the feed-forward: hidden[place] = act(gate) * up, row range by row range.
struct GateUp {
  const ExpertFfn& op;
  const ExpertSchedule& schedule;
  const std::byte* const* gate_records;  // by place
  const std::byte* const* up_records;
  float* hidden;  // [n_places, d_expert]
  int64_t d_expert;
  int64_t call_tokens;

  // `next`: the item that this thread runs after this one, or null.
  void run(const Item& item, const Item* next, const KernelTable& table, ThreadScratch& scratch) const {
    const std::byte* next_rows = next == nullptr ? nullptr : rows_of(op.gate, *next);
    const ExpertSchedule::Group& group = schedule.groups[static_cast<size_t>(item.product)];
    const auto expert = static_cast<size_t>(group.expert);
    const int64_t rows = item.row_end - item.row_begin;
    const VecTable& vec = vec_table(table.name);
    for (int64_t t = item.token_begin; t < item.token_end; t += call_tokens) {
      const int64_t n = std::min(call_tokens, item.token_end - t), first = group.begin + t;
      float* up = scratch.up.floats(n * rows);
      scratch.out.resize(static_cast<size_t>(n));
      scratch.up_out.resize(static_cast<size_t>(n));
      for (int64_t m = 0; m < n; ++m) {
        scratch.out[static_cast<size_t>(m)] = hidden + (first + m) * d_expert + item.row_begin;
        scratch.up_out[static_cast<size_t>(m)] = up + m * rows;
      }
      const auto count = static_cast<size_t>(n);
      std::byte* kernel = scratch.for_kernel(n);
      table.rows(op.gate[expert], item.row_begin, item.row_end, {gate_records + first, count}, scratch.out,
                 kernel, rows_of(op.up, item));
      table.rows(op.up[expert], item.row_begin, item.row_end, {up_records + first, count}, scratch.up_out,
                 kernel, next_rows);
      for (int64_t m = 0; m < n; ++m) {
        float* gate = scratch.out[static_cast<size_t>(m)];
        vec.glu(gate, up + m * rows, rows, op.act == Glu::Act::kSilu ? Gate::kSilu : Gate::kGeluTanh,
                op.limit, weight_of(first + m), gate);
      }
    }
  }

 private:
  const std::byte* rows_of(std::span<const Matrix> experts, const Item& item) const {
    const Matrix& m = experts[static_cast<size_t>(schedule.groups[static_cast<size_t>(item.product)].expert)];
    return m.data + item.row_begin * m.row_stride;
  }
  float weight_of(int64_t place) const {
    if (!op.round_hidden) return 1.0F;
    const int64_t slot = schedule.slots[static_cast<size_t>(place)], k = op.ids.dim(1);
    return op.weights.row_as<const float>(slot / k)[slot % k];
  }
};

// out[t] = shared[t] + sum over slots of weight * row, slots ascending. row_of(slot): null adds nothing.
template <typename RowOf>
void combine(Pool& pool, const VecTable& vec, std::span<ThreadScratch> threads, const Tensor& out, int64_t k,
             const Tensor& weights, const float* ones, const Tensor& shared, const RowOf& row_of) {
  constexpr int64_t kColumns = 2048;  // per item, a multiple of 16
  const int64_t d = out.dim(1), parts = (d + kColumns - 1) / kColumns;
  pool.run(out.dim(0) * parts, [&](int64_t item, int thread) {
    const int64_t t = item / parts, begin = item % parts * kColumns, n = std::min(kColumns, d - begin);
    float* to = out.row_as<float>(t) + begin;
    std::vector<const float*>& terms = threads[static_cast<size_t>(thread)].terms;
    const float* sum = shared ? shared.row_as<const float>(t) + begin : nullptr;
    const float* weight = weights ? weights.row_as<const float>(t) : ones;
    // Runs of slots that have a row: all of them, unless an id was out of range.
    bool wrote = false;
    for (int64_t s = 0; s < k;) {
      terms.clear();
      const int64_t first = s;
      for (const float* row; s < k && (row = row_of(t * k + s)) != nullptr; ++s) terms.push_back(row + begin);
      if (!terms.empty()) {
        vec.weighted_sum(sum, 1.0F, terms.data(), weight + first, 1, s - first, n, to);
        sum = to;
        wrote = true;
      }
      while (s < k && row_of(t * k + s) == nullptr) ++s;
    }
    if (wrote) return;
    if (sum != nullptr) {
      std::copy_n(sum, n, to);
    } else {
      std::fill_n(to, n, 0.0F);
    }
  });
}

}  // namespace
}  // namespace cpu

void CpuBackend::run(const ExpertLinear& op) {
  Scratch& s = *scratch_;
  const int64_t k = op.ids.dim(1), n_out = op.out.dim(2);
  if (!s.schedule.assign(op.ids, static_cast<int64_t>(op.experts.size()))) {
    raise(Status::kBadId);
    for (size_t slot = 0; slot < s.schedule.place.size(); ++slot) {
      if (s.schedule.place[slot] < 0)
        std::fill_n(op.out.row_as<float>(static_cast<int64_t>(slot)), n_out, 0.0F);
    }
  }
  uint32_t prepared = 0;
  cpu::prepare_for(op.experts, s.schedule, op.x, pool_, kernels_, s.inputs, prepared);
  const auto slot_at = [&](int64_t place) { return s.schedule.slots[static_cast<size_t>(place)]; };
  cpu::gather_records(
      op.experts, s.schedule, s.inputs,
      [&](int64_t place) { return op.x.rank == 3 ? slot_at(place) : slot_at(place) / k; }, s.gate_records);
  s.outputs.clear();
  for (const int64_t slot : s.schedule.slots) s.outputs.push_back(op.out.row_as<float>(slot));
  cpu::add_products(op.experts, s.schedule, s.gate_records, s.outputs, cpu::kMaxPanelTokens,
                    s.phase.products);
  s.phase.run(pool_, kernels_, s.threads);
}

void CpuBackend::run(const CombineExperts& op) {
  const int64_t k = op.x.dim(1);
  scratch_->ones.resize(static_cast<size_t>(k), 1.0F);
  cpu::combine(pool_, cpu::vec_table(kernels_.name), scratch_->threads, op.out, k, op.weights,
               scratch_->ones.data(), op.shared,
               [&](int64_t slot) { return op.x.row_as<const float>(slot); });
}

void CpuBackend::run(const ExpertFfn& op) {
  Scratch& s = *scratch_;
  const int64_t k = op.ids.dim(1), d_expert = op.down[0].n_in, d_model = op.down[0].n_out;
  const cpu::ExpertSchedule& schedule = s.schedule;
  if (!s.schedule.assign(op.ids, static_cast<int64_t>(op.gate.size()))) raise(Status::kBadId);
  const auto n_places = static_cast<int64_t>(schedule.slots.size());

  const Matrix &gate0 = op.gate[0], &up0 = op.up[0];
  const ExpertRoute route =
      expert_route({.device = "cpu",
                    .n_tokens = op.ids.dim(0),
                    .n_experts = static_cast<int64_t>(op.gate.size()),
                    .n_experts_used = k,
                    .type = gate0.type,
                    .gate_up_alike = gate0.storage == up0.storage && gate0.type == up0.type,
                    .threshold = options_.moe_threshold});
  const uint32_t route_bit = 1U << static_cast<uint32_t>(route);
  if ((s.logged_routes & route_bit) == 0 && log_level() >= LogLevel::kDebug) {
    log_line(LogLevel::kDebug,
             fmt::format("experts: {} kernels for {} tokens", synod::name(route), op.ids.dim(0)));
    s.logged_routes |= route_bit;
  }
  const int64_t call_tokens = route == ExpertRoute::kGrouped ? cpu::kMaxPanelTokens : 1;

  uint32_t prepared = 0;
  cpu::prepare_for(op.gate, schedule, op.x, pool_, kernels_, s.inputs, prepared);
  cpu::prepare_for(op.up, schedule, op.x, pool_, kernels_, s.inputs, prepared);
  const auto token_at = [&](int64_t place) { return schedule.slots[static_cast<size_t>(place)] / k; };
  cpu::gather_records(op.gate, schedule, s.inputs, token_at, s.gate_records);
  cpu::gather_records(op.up, schedule, s.inputs, token_at, s.up_records);

  const cpu::GateUp gate_up{.op = op,
                            .schedule = schedule,
                            .gate_records = s.gate_records.data(),
                            .up_records = s.up_records.data(),
                            .hidden = s.hidden_rows.floats(n_places * d_expert),
                            .d_expert = d_expert,
                            .call_tokens = call_tokens};
  s.phase.parts.clear();
  for (const auto& group : schedule.groups) {
    const auto e = static_cast<size_t>(group.expert);
    s.phase.parts.push_back({.n_rows = d_expert,
                             .row_bytes = cpu::bytes_per_row(op.gate[e]) + cpu::bytes_per_row(op.up[e]),
                             .n_tokens = group.size()});
  }
  cpu::cut_into_items(s.phase.parts, pool_.n_threads(), s.phase.items);
  pool_.run_ahead(static_cast<int64_t>(s.phase.items.size()), [&](int64_t i, int64_t next, int thread) {
    gate_up.run(s.phase.items[static_cast<size_t>(i)],
                next < 0 ? nullptr : &s.phase.items[static_cast<size_t>(next)], kernels_,
                s.threads[static_cast<size_t>(thread)]);
  });

  const Tensor hidden =
      Tensor::contiguous(gate_up.hidden, DType::kF32, {n_places, d_expert}, "expert_hidden");
  if (op.round_hidden) {
    constexpr int64_t kBlock = 128;  // values per scale
    pool_.run(n_places, [&](int64_t place, int) {
      float* row = hidden.row_as<float>(place);
      for (int64_t i = 0; i < d_expert; i += kBlock) {
        cpu::round_fp8_block(row + i, std::min(kBlock, d_expert - i));
      }
    });
  }
  prepared = 0;
  cpu::prepare_for(op.down, schedule, hidden, pool_, kernels_, s.hidden, prepared);
  cpu::gather_records(
      op.down, schedule, s.hidden, [](int64_t place) { return place; }, s.down_records);
  float* slot_rows = s.slot_rows.floats(n_places * d_model);
  s.outputs.clear();
  for (int64_t place = 0; place < n_places; ++place) s.outputs.push_back(slot_rows + place * d_model);
  cpu::add_products(op.down, schedule, s.down_records, s.outputs, call_tokens, s.phase.products);
  s.phase.run(pool_, kernels_, s.threads);

  s.ones.resize(static_cast<size_t>(k), 1.0F);
  cpu::combine(pool_, cpu::vec_table(kernels_.name), s.threads, op.out, k,
               op.round_hidden ? Tensor{} : op.weights, s.ones.data(), op.shared, [&](int64_t slot) {
                 const int64_t place = schedule.place[static_cast<size_t>(slot)];
                 return place < 0 ? nullptr : static_cast<const float*>(slot_rows + place * d_model);
               });
}

}  // namespace synod
