// Walks rows and tokens for a block family F (Blocks32, Blocks256), as avx512/drivers.inl does: one-row
// kernels for few tokens, a tile of 16 rows that is unpacked once for many.

inline constexpr int64_t kPrefetchBytes = 24 * 1024;
inline constexpr int kTileTokens = 3;    // tokens of one pass over a tile: sums stay in registers
inline constexpr int64_t kTileFrom = 6;  // tokens from which unpacking once pays
inline constexpr int64_t kTilePanel = 128;

// First row of a group of 8 that holds row `row`: a group never passes the last row of the matrix.
SYNOD_INLINE int64_t group_start(const Job& job, int64_t row) {
  return row + 8 <= job.n_rows ? row : job.n_rows - 8;
}

// Stores lanes [row - start, ...) of v: outputs row .. min(start + 8, end).
SYNOD_INLINE void store_rows(const Job& job, int64_t start, int64_t row, __m256 v, float* out) {
  const int64_t stop = start + 8 < job.end ? start + 8 : job.end;
  if (row == start && stop == start + 8) {
    _mm256_storeu_ps(out + (row - job.begin), v);
    return;
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, v);
  for (int64_t r = row; r < stop; ++r) out[r - job.begin] = lanes[r - start];
}

// What to prefetch for rows from `later` on: past the end of the job the bytes that the thread reads next.
SYNOD_INLINE const uint8_t* ahead_of(const Job& job, int64_t later) {
  if (later < job.end) return job.data + group_start(job, later) * job.stride;
  if (job.next != nullptr) return job.next + (later - job.end) / 8 * 8 * job.stride;
  return job.data + group_start(job, job.end - 1) * job.stride;
}

template <typename F, int M>
void one_row(const Job& job, int64_t first_token) {
  using Chunk = typename F::Chunk;
  const Chunk* records[M];
  for (int m = 0; m < M; ++m) records[m] = reinterpret_cast<const Chunk*>(job.x[first_token + m]);
  const int64_t n_blocks = job.k / (kChunkValues / F::kPerChunk);
  const int64_t group_bytes = 8 * job.stride;
  const int64_t ahead = group_bytes >= kPrefetchBytes ? 1 : kPrefetchBytes / group_bytes + 1;
  for (int64_t row = job.begin; row < job.end; row += 8) {
    const int64_t start = group_start(job, row);
    const uint8_t* later = ahead_of(job, row + 8 * ahead);
    Rows8 r{job.data + start * job.stride, job.stride};
    __m256 acc[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[m] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; ++b, r.p += F::kBytes, later += 8 * F::kBytes) {
      const Chunk* x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) x[m] = records[m] + b / F::kPerChunk;
      for (int i = 0; i < 8 * F::kBytes; i += 64) _mm_prefetch(later + i, _MM_HINT_T1);
      F::block(r, static_cast<int>(b % F::kPerChunk), x, acc);
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) store_rows(job, start, row, acc[m], job.out[first_token + m]);
  }
}

template <typename F, int M>
void micro(const Tile& tile, int n_blocks, const std::byte* const* records, int64_t chunk, float* park) {
  using Chunk = typename F::Chunk;
  const Chunk* x[M];
  for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Chunk*>(records[m]) + chunk;
  F::template micro<M>(tile, n_blocks, x, park);
}

template <typename F>
void fill_tile(const Job& job, const int64_t (&start)[2], int64_t chunk, int n_blocks, Tile& tile) {
  constexpr int64_t kChunkBytes = F::kPerChunk * F::kBytes;
  for (int h = 0; h < 2; ++h) {
    Rows8 r{job.data + start[h] * job.stride + chunk * kChunkBytes, job.stride};
    for (int i = 0; i < 8; ++i) {  // the tile after the next
      for (int64_t at = 0; at < kChunkBytes; at += 64) {
        _mm_prefetch(r.p + i * job.stride + 2 * kChunkBytes + at, _MM_HINT_T1);
      }
    }
    for (int b = 0; b < n_blocks; ++b, r.p += F::kBytes) F::fill(r, b, h, tile);
  }
}

template <typename F>
void tile_panel(const Job& job, int64_t first_token, int64_t n_tokens) {
  Tile& tile = *reinterpret_cast<Tile*>(job.scratch);
  auto* park = reinterpret_cast<float*>(job.scratch + kTileBytes);  // [n_tokens, kParkRows]
  const std::byte* const* records = job.x + first_token;
  const int64_t all_blocks = job.k / (kChunkValues / F::kPerChunk);
  const int64_t chunks = (all_blocks + F::kPerChunk - 1) / F::kPerChunk;
  for (int64_t row = job.begin; row < job.end; row += kParkRows) {
    // The second half may repeat the first where the range ends.
    const int64_t second = row + 8 < job.end ? row + 8 : row;
    const int64_t start[2] = {group_start(job, row), group_start(job, second)};
    for (int64_t i = 0; i < n_tokens * kParkRows; i += 8) _mm256_store_ps(park + i, _mm256_setzero_ps());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t left = all_blocks - chunk * F::kPerChunk;
      const int n_blocks = static_cast<int>(left < F::kPerChunk ? left : F::kPerChunk);
      fill_tile<F>(job, start, chunk, n_blocks, tile);
      int64_t m = 0;
      for (; m + kTileTokens <= n_tokens; m += kTileTokens) {
        micro<F, kTileTokens>(tile, n_blocks, records + m, chunk, park + m * kParkRows);
      }
      for (; m < n_tokens; ++m) micro<F, 1>(tile, n_blocks, records + m, chunk, park + m * kParkRows);
    }
    for (int64_t m = 0; m < n_tokens; ++m) {
      float* out = job.out[first_token + m];
      store_rows(job, start[0], row, _mm256_load_ps(park + m * kParkRows), out);
      if (second != row) store_rows(job, start[1], second, _mm256_load_ps(park + m * kParkRows + 8), out);
    }
  }
}

template <typename F>
void run(const Job& job) {
  if (job.n_tokens >= kTileFrom) {
    for (int64_t m = 0; m < job.n_tokens; m += kTilePanel) {
      tile_panel<F>(job, m, job.n_tokens - m < kTilePanel ? job.n_tokens - m : kTilePanel);
    }
    return;
  }
  int64_t m = 0;
  for (; m + 4 <= job.n_tokens; m += 4) one_row<F, 4>(job, m);
  for (; m + 2 <= job.n_tokens; m += 2) one_row<F, 2>(job, m);
  for (; m < job.n_tokens; ++m) one_row<F, 1>(job, m);
}
