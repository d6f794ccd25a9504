// Compressors: state rows and closing blocks.
#include <algorithm>

#include "cuda/builder.h"
#include "cuda/views.h"

namespace synod::cuda {

namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Rows of four values at a time.
bool in_quads(const View& v) { return aligned(v.p) && v.n1 == 1 && v.s0 % 4 == 0 && v.d % 4 == 0; }

}  // namespace

// Whether no kernel writes it: a launch may read it before its wait.
bool Builder::settled(const Tensor& t) const {
  return !step_.on_device(t.data) && std::ranges::none_of(written_outside_, [&](const Extent& written) {
    return written.overlaps(memory_of(t));
  });
}

// Rows to which a row of a table is added, and which are then stored: as state rows of up to kMaxStates
// compressors.
size_t Builder::fuse_states() {
  StateProgram p;
  const BatchView* batch = nullptr;
  size_t taken = 0;
  for (; p.n_items < kMaxStates; taken += 3) {
    const auto* embed = op_at<Embed>(index_ + taken);
    const auto* add = op_at<Add>(index_ + taken + 1);
    const auto* write = op_at<CacheWrite>(index_ + taken + 2);
    if (embed == nullptr || add == nullptr || write == nullptr) break;
    if (batch != nullptr && batch != write->batch) break;
    const int64_t n = write->x.dim(0);
    if (n == 0 || embed->ids.dim(0) != n || add->out.rank != 2 || add->out.dim(0) != n) break;
    const View x = view_of(write->x), sum = view_of(add->out), terms = view_of(embed->out);
    if (!same(view_of(add->a), sum) || !same(view_of(add->b), terms)) break;
    if (add->factor != 1.0F || embed->scale != 1.0F) break;
    if (!in_quads(x) || !in_quads(sum) || !in_quads(terms) || sum.s0 != x.s0) break;
    const int64_t from = sum.p - x.p;
    if (from < 0 || from + sum.d > x.d) break;
    const CacheTable rows = step_.table(write->rows);
    if (write->tokens_per_row != 1 || write->rows.type != DType::kF32 || rows.row_dim != x.d ||
        rows.row_bytes % 16 != 0) {
      break;
    }
    const DeviceMatrix& table = device(embed->table);
    if (table.codec != Codec::kF32 || !aligned(table.plane[0]) || table.stride[0] % 16 != 0) break;
    if (!settled(embed->ids)) break;
    // Items run at the same time.
    const auto apart = [&](const StateItem& other) {
      for (const View* a : {&x, &terms}) {
        for (const View* b : {&other.x, &other.terms}) {
          if (extent_of(*a, n).overlaps(extent_of(*b, n))) return false;
        }
      }
      return true;
    };
    if (p.n_items > 0 && !apart(p.items[0])) break;
    batch = write->batch;
    p.n_tokens = static_cast<int32_t>(n);
    StateItem& item = p.items[p.n_items++];
    item.x = x, item.terms = terms, item.rows = rows;
    item.table = reinterpret_cast<const float*>(table.plane[0]);
    item.table_stride = table.stride[0] / 4, item.table_rows = table.n_out;
    item.ids = embed->ids.as<int32_t>();
    item.from = static_cast<int32_t>(from);
  }
  if (p.n_items == 0) return 0;
  p.batch = step_.batch(batch);
  p.status = status();
  emit(state_program(p));
  return taken;
}

// What Compress lowers to, of up to kMaxCompressed compressors that close as many blocks.
size_t Builder::fuse_compress() {
  CompressProgram p;
  size_t taken = 0;
  while (p.n_items < kMaxCompressed) {
    size_t next = index_ + taken;
    const auto* pool = op_at<CompressPool>(next);
    const auto* norm = op_at<RmsNorm>(next + 1);
    const auto* turn = op_at<Rope>(next + 2);
    if (pool == nullptr || norm == nullptr || turn == nullptr) break;
    next += 3;
    const View out = view_of(pool->out);
    const int64_t n = pool->out.dim(0);
    const auto keeps = [&](const Tensor& t) { return t.rank == 2 && t.dim(0) == n && same(view_of(t), out); };
    const auto* hadamard = op_at<Hadamard>(next);
    if (hadamard != nullptr) ++next;
    const auto* round = op_at<RoundTrip>(next);
    if (round != nullptr) ++next;
    const auto* write = op_at<CacheWrite>(next++);
    if (n == 0 || write == nullptr || !keeps(norm->out) || !keeps(norm->x) || !keeps(turn->x)) break;
    if ((hadamard != nullptr && !keeps(hadamard->x)) || !keeps(write->x)) break;
    if (round != nullptr && (!keeps(round->out) || !keeps(round->x) || round->block % 32 != 0)) break;
    if (out.d % 32 != 0 || out.d > kWidestCompressed || pool->state.type != DType::kF32) break;
    if (turn->layout != Rope::Layout::kInterleaved || turn->inverse || turn->first % 2 != 0) break;
    if (!settled(turn->positions) || write->batch != pool->batch || write->tokens_per_row != pool->ratio ||
        write->rows.row_dim != out.d) {
      break;
    }
    // Items run at the same time: an earlier one whose rows a later one overwrites does not write them.
    if (p.n_items > 0) {
      View& earlier = p.items[0].pool.out;
      const Extent first = extent_of(earlier, n), second = extent_of(out, n);
      if (p.items[0].pool.n_rows != n) break;
      if (first.overlaps(second)) {
        if (first.begin < second.begin || first.end > second.end) break;
        earlier.p = nullptr;
      }
    }
    CompressItem& item = p.items[p.n_items++];
    item.pool = {.out = out,
                 .state = step_.table(pool->state),
                 .batch = step_.batch(pool->batch),
                 .ratio = static_cast<int32_t>(pool->ratio),
                 .overlap = pool->overlap ? 1 : 0,
                 .n_rows = static_cast<int32_t>(n)};
    item.weight = norm->weight ? norm->weight.as<float>() : nullptr;
    item.eps = norm->eps, item.factor = norm->factor;
    item.positions = turn->positions.as<int32_t>(), item.freqs = turn->freqs.as<float>();
    item.n_pairs = static_cast<int32_t>(turn->freqs.dim(0));
    item.first = static_cast<int32_t>(turn->first);
    item.hadamard = hadamard != nullptr ? 1 : 0;
    if (round != nullptr) {
      item.round_fp4 = round->grid == RoundTrip::Grid::kFp4 ? 1 : 0;
      item.round_block = static_cast<int32_t>(round->block);
      item.round_count = static_cast<int32_t>(round->count);
    }
    item.rows = step_.table(write->rows);
    taken = next - index_;
  }
  if (p.n_items == 0) return 0;
  p.status = status();
  emit(compress_program(p));
  return taken;
}

void Builder::run(const CompressPool& op) {
  if (op.out.dim(0) == 0) return;
  emit(compress_pool({.out = view_of(op.out),
                      .state = step_.table(op.state),
                      .batch = step_.batch(op.batch),
                      .ratio = static_cast<int32_t>(op.ratio),
                      .overlap = op.overlap ? 1 : 0,
                      .n_rows = static_cast<int32_t>(op.out.dim(0))}));
}

void Builder::run(const Compress&) { SYNOD_ASSERT(false); }  // lowered before it is recorded

}  // namespace synod::cuda
