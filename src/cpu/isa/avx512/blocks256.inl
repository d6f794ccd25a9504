// The one-row and the tile kernel of super-block types, for the drivers in drivers.inl.

template <typename T>
struct Blocks256 {
  using Chunk = Chunk256;
  static constexpr int kBytes = sizeof(typename T::Block);
  static constexpr int kPerChunk = 1;
  static constexpr int kTileFrom = T::kTileFrom;
  static constexpr int kTileTokens = T::kTileTokens;
  static constexpr int kGroups = 256 / T::kGroup;
  static constexpr int kQuads = T::kGroup / 4;

  SYNOD_INLINE __m512i pack16(__m512i low, __m512i high) {
    return _mm512_mask_blend_epi16(0xaaaaaaaaU, low, _mm512_slli_epi32(high, 16));
  }

  // sum += scales of a pair * (packed sums of codes - 8), and what the 8 took away.
  SYNOD_INLINE __m512i add_pair(__m512i sum, __m512i low, __m512i high, __m512i scales, const int32_t* x8) {
    sum = _mm512_dpwssd_epi32(sum, pack16(low, high), scales);
    return _mm512_dpwssd_epi32(sum, scales, broadcast(x8));
  }

  SYNOD_INLINE __m512 add_block(__m512 acc, const Chunk256& x, __m512 d, __m512i sum) {
    return _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(x.d)), _mm512_cvtepi32_ps(sum), acc);
  }

  template <int M>
  SYNOD_INLINE void block(const Rows16& r, int /*b*/, const Chunk256* const (&x)[M], __m512 (&acc)[M],
                          Prefetch& pf) {
    Header head;
    __m512i sum[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m] = first_sum(*x[m]);
    if constexpr (requires { T::scaled_sums(r, head, pf, x, sum); }) {
      T::scaled_sums(r, head, pf, x, sum);
    } else {
      unpacked_sums(r, head, pf, x, sum);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      acc[m] = add_block(acc[m], *x[m], head.d, sum[m]);
      if constexpr (T::kMinPairs > 0) {
        __m512i mins = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < T::kMinPairs; ++i) {
          mins = _mm512_dpwssd_epi32(mins, head.m[i], broadcast(T::min_sums(*x[m]) + i));
        }
        const __m512 dmin = _mm512_mul_ps(head.dmin, _mm512_set1_ps(x[m]->d));
        acc[m] = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(mins), acc[m]);
      }
    }
  }

  SYNOD_INLINE __m512i first_sum(const Chunk256& x) {
    if constexpr (requires { T::first_sum(x); }) {
      return T::first_sum(x);
    } else {
      return _mm512_setzero_si512();
    }
  }

  // sum[m] += scaled sums of the block as unpack gives its groups.
  template <int M>
  SYNOD_INLINE void unpacked_sums(const Rows16& r, Header& head, Prefetch& pf, const Chunk256* const (&x)[M],
                                  __m512i (&sum)[M]) {
    __m512i held[2][M];  // kPairs: sums of the groups that wait for their partner
    T::unpack(
        r, head, pf, [&](int g, const __m512i(&w)[kQuads], __m512i scale) __attribute__((always_inline)) {
          // With few tokens one chain over all groups would wait for its own latency.
          if constexpr (T::kScaling == Scaling::kFolded && M > 2) {
            dots(w, x, T::kGroup * g, sum);
            return;
          }
          __m512i a[M];
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) a[m] = T::start(*x[m], g);
          dots(w, x, T::kGroup * g, a);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) {
            if constexpr (T::kScaling == Scaling::kMultiply) {
              sum[m] = _mm512_add_epi32(sum[m], _mm512_mullo_epi32(a[m], scale));
            } else if constexpr (T::kScaling == Scaling::kFolded) {
              sum[m] = _mm512_add_epi32(sum[m], a[m]);
            } else if (g % 4 < 2) {
              held[g % 2][m] = a[m];
            } else {
              const int pair = g / 4 * 2 + g % 2;
              sum[m] = add_pair(sum[m], held[g % 2][m], a[m], head.s[pair], x[m]->pair32x8 + pair);
            }
          }
        });
  }

  SYNOD_INLINE void fill(const Rows16& r, int /*b*/, int h, Tile& tile) {
    Header head;
    NoPrefetch pf;
    T::unpack(
        r, head, pf, [&](int g, const __m512i(&w)[kQuads], __m512i scale) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int i = 0; i < kQuads; ++i) tile.w[kQuads * g + i][h] = w[i];
          if constexpr (T::kScaling == Scaling::kMultiply) tile.s[g][h] = scale;
        });
    if constexpr (T::kScaling == Scaling::kPairs) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) tile.s[i][h] = head.s[i];
    }
    if constexpr (T::kMinPairs > 0) {
#pragma GCC unroll 8
      for (int i = 0; i < T::kMinPairs; ++i) tile.t[i][h] = head.m[i];
      tile.m[0][h] = head.dmin;
    }
    tile.d[0][h] = head.d;
  }

  // a[m][h] += codes of group g * token m.
  template <int M>
  SYNOD_INLINE void group_dots(const Tile& tile, int g, const Chunk256* const (&x)[M], __m512i (&a)[M][2]) {
    const __m512i(*w)[2] = tile.w + kQuads * g;
    const int64_t k = T::kGroup * g;
#pragma GCC unroll 8
    for (int i = 0; i < kQuads; ++i) {
      const __m512i w0 = w[i][0];
      const __m512i w1 = w[i][1];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const __m512i q = broadcast(x[m]->q + k + 4 * i);
        a[m][0] = _mm512_dpbusd_epi32(a[m][0], w0, q);
        a[m][1] = _mm512_dpbusd_epi32(a[m][1], w1, q);
      }
    }
  }

  template <int M>
  SYNOD_INLINE void start_group(int g, const Chunk256* const (&x)[M], __m512i (&a)[M][2]) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) a[m][0] = a[m][1] = T::start(*x[m], g);
  }

  template <int M, typename Ahead>
  SYNOD_INLINE void scaled_sums(const Tile& tile, const Chunk256* const (&x)[M], __m512i (&sum)[M][2],
                                const Ahead& ahead) {
    constexpr int kGroupsPerStep = kGroups / 8;
    if constexpr (T::kScaling == Scaling::kFolded) {
      for (int g = 0; g < kGroups; ++g) {
        if (g % kGroupsPerStep == 0) ahead.template step<M>(g / kGroupsPerStep);
        group_dots(tile, g, x, sum);
      }
    } else if constexpr (T::kScaling == Scaling::kMultiply) {
      for (int g = 0; g < kGroups; ++g) {
        if (g % kGroupsPerStep == 0) ahead.template step<M>(g / kGroupsPerStep);
        __m512i a[M][2];
        start_group(g, x, a);
        group_dots(tile, g, x, a);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
          for (int h = 0; h < 2; ++h) {
            sum[m][h] = _mm512_add_epi32(sum[m][h], _mm512_mullo_epi32(a[m][h], tile.s[g][h]));
          }
        }
      }
    } else {
      for (int pair = 0; pair < 4; ++pair) {
        __m512i low[M][2];
        __m512i high[M][2];
        ahead.template step<M>(2 * pair);
        start_group(pair_low(pair), x, low);
        group_dots(tile, pair_low(pair), x, low);
        ahead.template step<M>(2 * pair + 1);
        start_group(pair_high(pair), x, high);
        group_dots(tile, pair_high(pair), x, high);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
          for (int h = 0; h < 2; ++h) {
            sum[m][h] = add_pair(sum[m][h], low[m][h], high[m][h], tile.s[pair][h], x[m]->pair32x8 + pair);
          }
        }
      }
    }
  }

  template <int M, typename Ahead>
  SYNOD_INLINE void micro(const Tile& tile, int /*n_blocks*/, const Chunk256* const (&x)[M], float* park,
                          const Ahead& ahead) {
    __m512i sum[M][2];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) sum[m][0] = sum[m][1] = first_sum(*x[m]);
    scaled_sums(tile, x, sum, ahead);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        __m512 acc = add_block(_mm512_load_ps(park + 32 * m + 16 * h), *x[m], tile.d[0][h], sum[m][h]);
        if constexpr (T::kMinPairs > 0) {
          __m512i mins = _mm512_setzero_si512();
#pragma GCC unroll 8
          for (int i = 0; i < T::kMinPairs; ++i) {
            mins = _mm512_dpwssd_epi32(mins, tile.t[i][h], broadcast(T::min_sums(*x[m]) + i));
          }
          const __m512 dmin = _mm512_mul_ps(tile.m[0][h], _mm512_set1_ps(x[m]->d));
          acc = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(mins), acc);
        }
        _mm512_store_ps(park + 32 * m + 16 * h, acc);
      }
    }
  }
};
