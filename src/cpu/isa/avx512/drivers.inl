// Walks rows and tokens for a block family F (Blocks32, Blocks256): one-row kernels for few tokens, the tile
// kernel for many. Both follow the same chain per output, so where one hands over to the other cannot be seen
// in results.

// Bytes that prefetching runs ahead of the computation: enough lines in flight, far less than L2.
inline constexpr int64_t kPrefetchBytes = 24 * 1024;

// First row of a group of 16 that holds row `row`: a group never passes the last row of the matrix.
SYNOD_INLINE int64_t group_start(const Job& job, int64_t row) {
  return row + 16 <= job.n_rows ? row : job.n_rows - 16;
}

// Stores lanes [row - start, ...) of v: outputs row .. min(start + 16, end).
SYNOD_INLINE void store_rows(const Job& job, int64_t start, int64_t row, __m512 v, float* out) {
  const int64_t stop = start + 16 < job.end ? start + 16 : job.end;
  if (row == start && stop == start + 16) {
    _mm512_storeu_ps(out + (row - job.begin), v);
    return;
  }
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, v);
  for (int64_t r = row; r < stop; ++r) out[r - job.begin] = lanes[r - start];
}

// What to prefetch for rows from `later` on: past the end of the job the bytes that the thread reads next.
SYNOD_INLINE const uint8_t* ahead_of(const Job& job, int64_t later) {
  if (later < job.end) return job.data + group_start(job, later) * job.stride;
  if (job.next != nullptr) return job.next + (later - job.end) / 16 * 16 * job.stride;
  return job.data + group_start(job, job.end - 1) * job.stride;
}

template <typename F, int M>
void one_row(const Job& job, int64_t first_token) {
  using Chunk = typename F::Chunk;
  const Chunk* records[M];
  for (int m = 0; m < M; ++m) records[m] = reinterpret_cast<const Chunk*>(job.x[first_token + m]);
  const int64_t n_blocks = job.k / (kChunkValues / F::kPerChunk);
  const int64_t group_bytes = 16 * job.stride;
  const int64_t ahead = group_bytes >= kPrefetchBytes ? 1 : kPrefetchBytes / group_bytes + 1;
  for (int64_t row = job.begin; row < job.end; row += 16) {
    const int64_t start = group_start(job, row);
    Prefetch pf{ahead_of(job, row + 16 * ahead)};
    Rows16 r{job.data + start * job.stride, job.stride};
    __m512 acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n_blocks; ++b, r.p += F::kBytes) {
      const Chunk* x[M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) x[m] = records[m] + b / F::kPerChunk;
      F::block(r, static_cast<int>(b % F::kPerChunk), x, acc, pf);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) store_rows(job, start, row, acc[m], job.out[first_token + m]);
  }
}

// Touches the blocks of a coming tile, a few lines at a time.
struct TilePrefetch {
  const uint8_t* half[2] = {nullptr, nullptr};
  int64_t stride = 0;
  int lines = 0;  // per row
  int row = 0;
  int line = 0;

  void advance(int64_t n) {
    for (; n > 0 && row < kTileRows; --n) {
      _mm_prefetch(half[row / 16] + (row % 16) * stride + 64 * line, _MM_HINT_T1);
      if (++line == lines) {
        line = 0;
        ++row;
      }
    }
  }
};

template <typename F, int M, typename Ahead = NothingAhead>
void micro(const Tile& tile, int n_blocks, const std::byte* const* records, int64_t chunk, float* park,
           const Ahead& ahead = {}) {
  using Chunk = typename F::Chunk;
  const Chunk* x[M];
  for (int m = 0; m < M; ++m) x[m] = reinterpret_cast<const Chunk*>(records[m]) + chunk;
  F::template micro<M>(tile, n_blocks, x, park, ahead);
}

template <typename F>
void micro_rest(int n, const Tile& tile, int n_blocks, const std::byte* const* records, int64_t chunk,
                float* park) {
  switch (n) {
    case 1:
      return micro<F, 1>(tile, n_blocks, records, chunk, park);
    case 2:
      return micro<F, 2>(tile, n_blocks, records, chunk, park);
    case 3:
      return micro<F, 3>(tile, n_blocks, records, chunk, park);
    case 4:
      if constexpr (F::kTileTokens > 4) return micro<F, 4>(tile, n_blocks, records, chunk, park);
      break;
    case 5:
      if constexpr (F::kTileTokens > 5) return micro<F, 5>(tile, n_blocks, records, chunk, park);
      break;
    case 6:
      if constexpr (F::kTileTokens > 6) return micro<F, 6>(tile, n_blocks, records, chunk, park);
      break;
    case 7:
      if constexpr (F::kTileTokens > 7) return micro<F, 7>(tile, n_blocks, records, chunk, park);
      break;
    default:
      break;
  }
}

// Unpacks chunk `chunk` of the 32 rows whose halves start at rows start[0] and start[1].
template <typename F>
void fill_tile(const Job& job, const int64_t (&start)[2], int64_t chunk, int n_blocks,
               Tile& tile) {
  for (int h = 0; h < 2; ++h) {
    Rows16 r{job.data + start[h] * job.stride + chunk * F::kPerChunk * F::kBytes, job.stride};
    for (int b = 0; b < n_blocks; ++b, r.p += F::kBytes) F::fill(r, b, h, tile);
  }
}

// The sums so far of 32 rows, [n_tokens, 32]: nothing yet, or what the outputs hold.
inline void load_park(const Job& job, const int64_t (&start)[2], const int64_t (&row)[2], int64_t first_token,
                      int64_t n_tokens, float* park) {
  for (int64_t m = 0; m < n_tokens; ++m) {
    const float* out = job.out[first_token + m];
    for (int h = 0; h < 2; ++h) {
      const int64_t skip = row[h] - start[h];
      const int64_t n = (start[h] + 16 < job.end ? start[h] + 16 : job.end) - row[h];
      const auto mask = static_cast<__mmask16>(((1U << n) - 1) << skip);
      const __m512 v = _mm512_maskz_loadu_ps(mask, out + (row[h] - job.begin) - skip);
      _mm512_store_ps(park + m * kTileRows + 16 * h, v);
    }
  }
}

inline void store_park(const Job& job, const int64_t (&start)[2], const int64_t (&row)[2],
                       int64_t first_token, int64_t n_tokens, const float* park) {
  for (int64_t m = 0; m < n_tokens; ++m) {
    float* out = job.out[first_token + m];
    store_rows(job, start[0], row[0], _mm512_load_ps(park + m * kTileRows), out);
    if (row[1] != row[0]) store_rows(job, start[1], row[1], _mm512_load_ps(park + m * kTileRows + 16), out);
  }
}

template <typename F>
void tile_panel(const Job& job, int64_t first_token, int64_t n_tokens) {
  Tile& tile = *reinterpret_cast<Tile*>(job.scratch);
  auto* park = reinterpret_cast<float*>(job.scratch + kTileBytes);  // [n_tokens, 32]
  const std::byte* const* records = job.x + first_token;
  const int64_t all_blocks = job.k / (kChunkValues / F::kPerChunk);
  const int64_t chunks = (all_blocks + F::kPerChunk - 1) / F::kPerChunk;
  constexpr int kLines = (F::kPerChunk * F::kBytes + 62) / 64 + 1;
  const int64_t calls = (n_tokens + F::kTileTokens - 1) / F::kTileTokens;
  const int64_t lines_per_call = (kTileRows * kLines + calls - 1) / calls;
  // Chunks of one pass. The outputs hold the sums between passes: exact, they are f32.
  const int64_t fit = job.pass_bytes / (n_tokens * static_cast<int64_t>(sizeof(typename F::Chunk)));
  const int64_t pass = job.end - job.begin <= kTileRows ? chunks : fit < 1 ? 1 : fit;
  for (int64_t first = 0; first < chunks; first += pass) {
    const int64_t stop = first + pass < chunks ? first + pass : chunks;
    for (int64_t row = job.begin; row < job.end; row += kTileRows) {
      // The second half may repeat the first where the range ends.
      const int64_t halves[2] = {row, row + 16 < job.end ? row + 16 : row};
      const int64_t start[2] = {group_start(job, halves[0]), group_start(job, halves[1])};
      if (first == 0) {
        for (int64_t i = 0; i < n_tokens * kTileRows; i += 16) _mm512_store_ps(park + i, _mm512_setzero_ps());
      } else {
        load_park(job, start, halves, first_token, n_tokens, park);
      }
      for (int64_t chunk = first; chunk < stop; ++chunk) {
        const int64_t left = all_blocks - chunk * F::kPerChunk;
        const int n_blocks = static_cast<int>(left < F::kPerChunk ? left : F::kPerChunk);
        fill_tile<F>(job, start, chunk, n_blocks, tile);
        // The tile after this one: the next chunk, or the first of the pass of the next rows.
        const bool last = chunk + 1 == stop;
        const int64_t next_row = last ? row + kTileRows : row;
        const int64_t next_byte = (last ? first : chunk + 1) * F::kPerChunk * F::kBytes;
        TilePrefetch pf;
        if (next_row < job.end) {
          const int64_t next_second = next_row + 16 < job.end ? next_row + 16 : next_row;
          pf = {{job.data + group_start(job, next_row) * job.stride + next_byte,
                 job.data + group_start(job, next_second) * job.stride + next_byte},
                job.stride,
                kLines};
        } else {
          pf.row = kTileRows;
        }
        int64_t m = 0;
        for (; m + F::kTileTokens <= n_tokens; m += F::kTileTokens) {
          pf.advance(lines_per_call);
          // The last call has no next one: it touches its own again.
          const int64_t next = m + 2 * F::kTileTokens <= n_tokens ? m + F::kTileTokens : m;
          const TokensAhead ahead{records + next, chunk * static_cast<int64_t>(sizeof(typename F::Chunk)),
                                  park + next * kTileRows};
          micro<F, F::kTileTokens>(tile, n_blocks, records + m, chunk, park + m * kTileRows, ahead);
        }
        pf.advance(lines_per_call);
        micro_rest<F>(static_cast<int>(n_tokens - m), tile, n_blocks, records + m, chunk,
                      park + m * kTileRows);
      }
      store_park(job, start, halves, first_token, n_tokens, park);
    }
  }
}

template <typename F, int M>
void one_row_up_to(const Job& job, int64_t first_token, int64_t n) {
  if constexpr (M > 0) {
    if (n == M) {
      one_row<F, M>(job, first_token);
    } else {
      one_row_up_to<F, M - 1>(job, first_token, n);
    }
  }
}

template <typename F>
void run(const Job& job) {
  if (job.n_tokens >= F::kTileFrom) {
    for (int64_t m = 0; m < job.n_tokens; m += kPanelTokens) {
      tile_panel<F>(job, m, job.n_tokens - m < kPanelTokens ? job.n_tokens - m : kPanelTokens);
    }
    return;
  }
  constexpr int kMost = F::kTileFrom - 1 < 8 ? F::kTileFrom - 1 : 8;
  for (int64_t m = 0; m < job.n_tokens; m += kMost) {
    one_row_up_to<F, kMost>(job, m, job.n_tokens - m < kMost ? job.n_tokens - m : kMost);
  }
}
