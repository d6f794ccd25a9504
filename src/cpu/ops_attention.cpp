// Attention and SparseAttention: work items are tiles of tokens times blocks of query heads.
#include "cpu/ops_attention.h"

#include <algorithm>

#include "base/error.h"
#include "cpu/cpu_backend.h"
#include "cpu/ops_parallel.h"

namespace synod {
namespace {

// Tokens [first, end) of sequence `seq`, counted over the batch; `position` of the first.
struct TokenRange {
  int64_t seq, first, end, position;
};

std::vector<TokenRange> token_tiles(const BatchView& batch, int64_t n_tokens) {
  std::vector<TokenRange> tiles;
  for (int64_t s = 0; s < batch.n_sequences(); ++s) {
    const int64_t start = batch.row_start[static_cast<size_t>(s)], past = batch.past[static_cast<size_t>(s)];
    for (int64_t i = 0; i < batch.new_tokens(s); i += n_tokens) {
      tiles.push_back({s, start + i, start + std::min(batch.new_tokens(s), i + n_tokens), past + i});
    }
  }
  return tiles;
}

// Query heads per item: whole groups of 4, fewer where threads would stay idle.
int64_t head_block(int64_t n_heads, int64_t n_items, int n_threads) {
  int64_t block = std::min(n_heads, cpu::kMaxTileRows);
  while (block > 4 && n_items * ((n_heads + block - 1) / block) < n_threads) block = (block / 2 + 3) / 4 * 4;
  return block;
}

constexpr double kScoreUs = 0.1e-3;  // per query head, key and dimension, over 4

double attention_us(const BatchView& batch, int64_t n_heads, int64_t d, int64_t window) {
  double keys = 0.0;
  for (int64_t s = 0; s < batch.n_sequences(); ++s) {
    const int64_t seen = window > 0 ? std::min(window, batch.total(s)) : batch.total(s);
    keys += static_cast<double>(seen) * static_cast<double>(batch.new_tokens(s));
  }
  return keys * static_cast<double>(n_heads * d) * kScoreUs;
}

cpu::AttentionTile& thread_tile() {
  thread_local cpu::AttentionTile tile;
  return tile;
}

int64_t first_visible(int64_t position, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

}  // namespace

void CpuBackend::run(const Attention& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const int64_t n_heads = op.q.dim(1), d = op.q.dim(2), group = n_heads / op.n_kv_heads;
  const int64_t tile_tokens = std::max<int64_t>(1, cpu::kMaxTileRows / group);
  const std::vector<TokenRange> tiles = token_tiles(*op.batch, tile_tokens);
  const auto n_tiles = static_cast<int64_t>(tiles.size());
  const int64_t block = head_block(group, n_tiles * op.n_kv_heads, pool_.n_threads());
  const int64_t n_blocks = (group + block - 1) / block, per_tile = op.n_kv_heads * n_blocks;
  const double work_us = attention_us(*op.batch, n_heads, d, op.window);
  cpu::for_items(pool_, n_tiles * per_tile, work_us, [&](int64_t item) {
    // The longest tiles of a prompt come last: start with them.
    const TokenRange& tokens = tiles[static_cast<size_t>(n_tiles - 1 - item / per_tile)];
    const int64_t kv_head = item % per_tile / n_blocks, first_head = item % n_blocks * block;
    const int64_t n_block = std::min(block, group - first_head);
    cpu::AttentionTile& tile = thread_tile();
    tile.start(vec, d, op.scale, n_block);
    std::vector<int64_t> first, end;
    for (int64_t t = tokens.first; t < tokens.end; ++t) {
      const int64_t position = tokens.position + t - tokens.first;
      first.push_back(first_visible(position, op.window));
      end.push_back(position + 1);
      for (int64_t h = 0; h < n_block; ++h) {
        const int64_t row = t * n_heads + kv_head * group + first_head + h;
        tile.add_row(op.q.row_as<const float>(row), op.out.row_as<float>(row));
      }
    }
    tile.attend({.keys = &op.k, .values = &op.v, .seq = tokens.seq, .offset = kv_head * d}, first, end);
    tile.finish(nullptr);
  });
}

void CpuBackend::run(const SparseAttention& op) {
  const cpu::VecTable& vec = cpu::vec_table(kernels_.name);
  const int64_t n_heads = op.q.dim(1), d = op.q.dim(2);
  const std::vector<TokenRange> tiles = token_tiles(*op.batch, 1);
  // Compressed rows, or places of the selected list, that each token sees.
  std::vector<int64_t> n_compressed(tiles.size(), 0);
  double n_keys = 0.0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const TokenRange& token = tiles[i];
    if (op.compressed) n_compressed[i] = (token.position + 1) / op.ratio;
    if (op.selected) {
      const int32_t* selected = op.selected.row_as<const int32_t>(token.first);
      const int64_t n_visible = n_compressed[i];
      int64_t n = 0;
      for (; n < op.selected.dim(1) && selected[n] >= 0; ++n) SYNOD_ASSERT(selected[n] < n_visible);
      n_compressed[i] = n;
    }
    n_keys += static_cast<double>(std::min(op.window, token.position + 1) + n_compressed[i]);
  }
  const auto n_tiles = static_cast<int64_t>(tiles.size());
  const int64_t block = head_block(n_heads, n_tiles, pool_.n_threads());
  const int64_t n_blocks = (n_heads + block - 1) / block;
  const double work_us = n_keys * static_cast<double>(n_heads * d) * kScoreUs;
  cpu::for_items(pool_, n_tiles * n_blocks, work_us, [&](int64_t item) {
    const auto at = static_cast<size_t>(item / n_blocks);
    const TokenRange& token = tiles[at];
    const int64_t first_head = item % n_blocks * block, n_block = std::min(block, n_heads - first_head);
    cpu::AttentionTile& tile = thread_tile();
    tile.start(vec, d, op.scale, n_block);
    for (int64_t h = first_head; h < first_head + n_block; ++h) {
      const int64_t row = token.first * n_heads + h;
      tile.add_row(op.q.row_as<const float>(row), op.out.row_as<float>(row));
    }
    tile.attend({.keys = &op.window_rows, .values = &op.window_rows, .seq = token.seq},
                {first_visible(token.position, op.window)}, {token.position + 1});
    if (n_compressed[at] > 0) {
      const int32_t* list = op.selected ? op.selected.row_as<const int32_t>(token.first) : nullptr;
      tile.attend({.keys = &op.compressed, .values = &op.compressed, .seq = token.seq, .list = list}, {0},
                  {n_compressed[at]});
    }
    tile.finish(op.sinks.as<const float>() + first_head);
  });
}

}  // namespace synod
