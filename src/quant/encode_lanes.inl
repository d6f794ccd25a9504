// The searches of encode_search.cpp with one group per vector lane. Included in an unnamed namespace inside a
// target region, after kLanes, the vectors F and I (one float or int32 per lane; I is also a mask, 0 or -1),
// min_int and max_int.
//
// Why the bits are those of the definition: a lane performs the operations of its group in the same order,
// and what would be a branch is a choice between both results. Codes of the best candidate are not stored but
// computed again from its reciprocal scale.

template <int... kLane>
using Lanes = std::integer_sequence<int, kLane...>;

SYNOD_INLINE F splat(float v) { return v - F{}; }
SYNOD_INLINE I splat_int(int v) { return v - I{}; }
SYNOD_INLINE F choose(I mask, F yes, F no) { return (F)((mask & (I)yes) | (~mask & (I)no)); }
SYNOD_INLINE I choose_int(I mask, I yes, I no) { return (mask & yes) | (~mask & no); }
SYNOD_INLINE F magnitude(F v) { return (F)((I)v & 0x7fffffff); }
SYNOD_INLINE F to_float(I v) { return __builtin_convertvector(v, F); }

SYNOD_INLINE I round_clip(F v, int low, int high) {
  const I c = ((I)(v + 12582912.0F) & 0x7fffff) - 0x400000;
  return min_int(max_int(c, splat_int(low)), splat_int(high));
}

SYNOD_INLINE bool any(I mask) {
  int32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) result |= mask[lane];
  return result != 0;
}

// Swaps the upper lanes of every pair of `kDistance` lanes of a with the lower lanes of b.
template <int kDistance, int... kLane>
SYNOD_INLINE void exchange(F& a, F& b, Lanes<kLane...>) {
  const F low =
      __builtin_shufflevector(a, b, ((kLane & kDistance) == 0 ? kLane : kLanes + kLane - kDistance)...);
  b = __builtin_shufflevector(a, b, ((kLane & kDistance) == 0 ? kLane + kDistance : kLanes + kLane)...);
  a = low;
}

template <int kDistance>
SYNOD_INLINE void exchange_all(F* tile) {
  for (int j = 0; j < kLanes; ++j) {
    if ((j & kDistance) == 0)
      exchange<kDistance>(tile[j], tile[j + kDistance], std::make_integer_sequence<int, kLanes>{});
  }
}

// Lane l of tile[j] becomes lane j of tile[l].
SYNOD_INLINE void transpose(F (&tile)[kLanes]) {
  exchange_all<1>(tile);
  exchange_all<2>(tile);
  exchange_all<4>(tile);
  if constexpr (kLanes == 16) exchange_all<8>(tile);
}

// kLanes groups, value i of all groups in one vector. Lanes past the last group hold zeros.
template <int kLength>
struct Chunk {
  F x[kLength];
  F w[kLength];
  int n;  // groups present

  SYNOD_INLINE void load(const Groups& g, int64_t first, bool with_weights) {
    n = g.n - first < kLanes ? static_cast<int>(g.n - first) : kLanes;
    load_tiles(g.x + first * kLength, x);
    if (with_weights) load_tiles(g.w + first * kLength, w);
  }
  SYNOD_INLINE void load_tiles(const float* in, F* out) const {
    for (int i = 0; i < kLength; i += kLanes) {
      F tile[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        tile[lane] = F{};
        if (lane < n) __builtin_memcpy(&tile[lane], in + lane * kLength + i, sizeof(F));
      }
      transpose(tile);
      for (int j = 0; j < kLanes; ++j) out[i + j] = tile[j];
    }
  }
  SYNOD_INLINE void store_codes(const I* codes, uint8_t* out) const {
    for (int i = 0; i < kLength; i += kLanes) {
      F tile[kLanes];  // the bits of integers; only moved
      for (int j = 0; j < kLanes; ++j) tile[j] = (F)codes[i + j];
      transpose(tile);
      for (int lane = 0; lane < n; ++lane) {
        store_bytes((I)tile[lane], out + lane * kLength + i);
      }
    }
  }
  SYNOD_INLINE void store(F v, float* out) const {
    for (int lane = 0; lane < n; ++lane) out[lane] = v[lane];
  }
  SYNOD_INLINE F extreme() const {
    F result{};
    F largest{};
    for (int i = 0; i < kLength; ++i) {
      const I larger = magnitude(x[i]) > largest;
      largest = choose(larger, magnitude(x[i]), largest);
      result = choose(larger, x[i], result);
    }
    return result;
  }
};

template <int kLength, bool kAbsolute>
void affine_chunk(const Chunk<kLength>& c, const AffineSearch& search, F* scale_out, F* min_out, I* codes) {
  F low = c.x[0];
  F high = c.x[0];
  F sum_w{};
  F sum_wx{};
  for (int i = 0; i < kLength; ++i) {
    low = choose(c.x[i] < low, c.x[i], low);
    high = choose(high < c.x[i], c.x[i], high);
    sum_w += c.w[i];
    sum_wx += c.w[i] * c.x[i];
  }
  low = choose(low > F{}, F{}, low);
  const I active = high != low;
  const auto top = static_cast<float>(search.top);

  F code[kLength];
  const auto error_of = [&](F scale, F min) __attribute__((always_inline)) {
    F error{};
    for (int i = 0; i < kLength; ++i) {
      const F e = scale * code[i] + min - c.x[i];
      error += c.w[i] * (kAbsolute ? magnitude(e) : e * e);
    }
    return error;
  };

  F best_inverse = top / (high - low);
  F best_low = low;  // the minimum that the best codes were computed with
  F best_scale = 1.0F / best_inverse;
  for (int i = 0; i < kLength; ++i) {
    code[i] = to_float(round_clip(best_inverse * (c.x[i] - low), 0, search.top));
  }
  F best_error = error_of(best_scale, low);
  for (int k = 0; k < search.n_steps; ++k) {
    const F inverse = (search.first + search.step * static_cast<float>(k) + top) / (high - low);
    F sum_wc{};
    F sum_wcc{};
    F sum_wcx{};
    for (int i = 0; i < kLength; ++i) {
      code[i] = to_float(round_clip(inverse * (c.x[i] - low), 0, search.top));
      const F wc = c.w[i] * code[i];
      sum_wc += wc;
      sum_wcc += wc * code[i];
      sum_wcx += wc * c.x[i];
    }
    const F determinant = sum_w * sum_wcc - sum_wc * sum_wc;
    F scale = (sum_w * sum_wcx - sum_wx * sum_wc) / determinant;
    F min = (sum_wcc * sum_wx - sum_wc * sum_wcx) / determinant;
    const I forced = min > F{};
    scale = choose(forced, sum_wcx / sum_wcc, scale);
    min = choose(forced, F{}, min);
    const F error = error_of(scale, min);
    const I better = active & (determinant > F{}) & (error < best_error);
    best_error = choose(better, error, best_error);
    best_scale = choose(better, scale, best_scale);
    best_inverse = choose(better, inverse, best_inverse);
    best_low = choose(better, low, best_low);
    low = choose(better, min, low);
  }
  for (int i = 0; i < kLength; ++i) {
    codes[i] = active & round_clip(best_inverse * (c.x[i] - best_low), 0, search.top);
  }
  *scale_out = choose(active, best_scale, F{});
  *min_out = -low;
}

template <int kLength, bool kAbsolute>
void affine_groups(const Groups& g, const AffineSearch& search, float* scales, float* mins, uint8_t* codes) {
  Chunk<kLength> chunk;
  I chunk_codes[kLength];
  F scale;
  F min;
  for (int64_t first = 0; first < g.n; first += kLanes) {
    chunk.load(g, first, true);
    affine_chunk<kLength, kAbsolute>(chunk, search, &scale, &min, chunk_codes);
    chunk.store(scale, scales + first);
    chunk.store(min, mins + first);
    chunk.store_codes(chunk_codes, codes + first * kLength);
  }
}

void affine(const Groups& g, const AffineSearch& search, float* scales, float* mins, uint8_t* codes) {
  if (g.length == 32) {
    (search.absolute_error ? affine_groups<32, true> : affine_groups<32, false>)(g, search, scales, mins,
                                                                                 codes);
  } else {
    (search.absolute_error ? affine_groups<16, true> : affine_groups<16, false>)(g, search, scales, mins,
                                                                                 codes);
  }
}

SYNOD_INLINE F quotient_or_zero(F a, F b) { return choose(b > F{}, a / b, F{}); }

template <int kLength>
F symmetric_chunk(const Chunk<kLength>& c, int top, I* codes) {
  const F peak = c.extreme();
  const I active = magnitude(peak) >= splat(kZeroGroup);
  F wx[kLength];
  for (int i = 0; i < kLength; ++i) wx[i] = c.w[i] * c.x[i];
  F best_inverse{};
  F best_gain{};
  F best_scale{};
  for (int k = 0; k <= 18; ++k) {
    const int tenths = k == 0 ? 0 : k <= 9 ? k - 10 : k - 9;
    const F inverse = -(static_cast<float>(top) + 0.1F * static_cast<float>(tenths)) / peak;
    F wxc{};
    F wcc{};
    for (int i = 0; i < kLength; ++i) {
      const F code = to_float(round_clip(inverse * c.x[i], -top, top - 1));
      wxc += wx[i] * code;
      wcc += c.w[i] * code * code;
    }
    const I better = k == 0 ? ~I{} : (wcc > F{}) & (wxc * wxc > best_gain * wcc);
    best_scale = choose(better, quotient_or_zero(wxc, wcc), best_scale);
    best_gain = choose(better, best_scale * wxc, best_gain);
    best_inverse = choose(better, inverse, best_inverse);
  }
  for (int i = 0; i < kLength; ++i) {
    codes[i] = active & (round_clip(best_inverse * c.x[i], -top, top - 1) + top);
  }
  return choose(active, best_scale, F{});
}

template <int kLength>
F refined_chunk(const Chunk<kLength>& c, int top, I* codes) {
  const F peak = c.extreme();
  const I active = magnitude(peak) >= splat(kZeroGroup);
  const F inverse = -static_cast<float>(top) / peak;
  F wxc{};
  F wcc{};
  for (int i = 0; i < kLength; ++i) {
    const F w = c.x[i] * c.x[i];
    codes[i] = round_clip(inverse * c.x[i], -top, top - 1);
    const F code = to_float(codes[i]);
    wxc += w * c.x[i] * code;
    wcc += w * code * code;
  }
  I moving = active;  // groups whose last sweep moved a code
  for (int sweep = 0; sweep < 5 && any(moving); ++sweep) {
    I moved{};
    for (int i = 0; i < kLength; ++i) {
      const F w = c.x[i] * c.x[i];
      const F old = to_float(codes[i]);
      const F rest_wxc = wxc - w * c.x[i] * old;
      const F rest_wcc = wcc - w * old * old;
      const I next = round_clip(c.x[i] * rest_wcc / rest_wxc, -top, top - 1);
      const F code = to_float(next);
      const F new_wxc = rest_wxc + w * c.x[i] * code;
      const F new_wcc = rest_wcc + w * code * code;
      const I better = moving & (rest_wxc > F{}) & (next != codes[i]) & (new_wcc > F{}) &
                       (new_wxc * new_wxc * wcc > wxc * wxc * new_wcc);
      codes[i] = choose_int(better, next, codes[i]);
      wxc = choose(better, new_wxc, wxc);
      wcc = choose(better, new_wcc, wcc);
      moved |= better;
    }
    moving = moved;
  }
  for (int i = 0; i < kLength; ++i) codes[i] = active & (codes[i] + top);
  return choose(active, wxc / wcc, F{});
}

template <int kLength, bool kRefined>
void symmetric_groups(const Groups& g, int top, float* scales, uint8_t* codes) {
  Chunk<kLength> chunk;
  I chunk_codes[kLength];
  for (int64_t first = 0; first < g.n; first += kLanes) {
    chunk.load(g, first, !kRefined);
    const F scale = kRefined ? refined_chunk<kLength>(chunk, top, chunk_codes)
                             : symmetric_chunk<kLength>(chunk, top, chunk_codes);
    chunk.store(scale, scales + first);
    chunk.store_codes(chunk_codes, codes + first * kLength);
  }
}

void symmetric(const Groups& g, int top, float* scales, uint8_t* codes) {
  (g.length == 32 ? symmetric_groups<32, false> : symmetric_groups<16, false>)(g, top, scales, codes);
}

void refined(const Groups& g, int top, float* scales, uint8_t* codes) {
  (g.length == 32 ? symmetric_groups<32, true> : symmetric_groups<16, true>)(g, top, scales, codes);
}

void iq4_scales(const Groups& g, float* scales) {
  constexpr int kLength = 32;  // the only one of the two IQ4 types
  constexpr float kLowest = kIq4Values[0];
  Chunk<kLength> c;
  for (int64_t first = 0; first < g.n; first += kLanes) {
    c.load(g, first, true);
    const F peak = c.extreme();
    const I active = magnitude(peak) >= splat(kZeroGroup);
    F best_gain{};
    F best_scale{};
    for (int k = -8; k <= 7; ++k) {
      const F inverse = k == -8 ? 1.0F / (-peak / kLowest) : (static_cast<float>(k) + kLowest) / peak;
      F wxc{};
      F wcc{};
      for (int i = 0; i < kLength; ++i) {
        const F v = inverse * c.x[i];
        F level = splat(kLowest);  // small integers: these sums are exact
        for (int m = 0; m < 15; ++m) {
          const auto gap = static_cast<float>(kIq4Values[m + 1] - kIq4Values[m]);
          level += (F)((v >= splat(kIq4Midpoints[m])) & (I)splat(gap));
        }
        const F wl = c.w[i] * level;
        wxc += wl * c.x[i];
        wcc += wl * level;
      }
      const I better = k == -8 ? ~I{} : (wcc > F{}) & (wxc * wxc > best_gain * wcc);
      best_scale = choose(better, quotient_or_zero(wxc, wcc), best_scale);
      best_gain = choose(better, best_scale * wxc, best_gain);
    }
    c.store(choose(active, best_scale, F{}), scales + first);
  }
}

void project(const Codebook& book, const float* wx, const float* w, float* p, float* q) {
  for (int e = 0; e < book.n_entries; e += kLanes) {
    F sum_p{};
    F sum_q{};
    for (int j = 0; j < book.length; ++j) {
      F g;
      __builtin_memcpy(&g, book.coordinates + j * book.n_entries + e, sizeof(F));
      sum_p += wx[j] * g;
      sum_q += w[j] * g * g;
    }
    __builtin_memcpy(p + e, &sum_p, sizeof(F));
    __builtin_memcpy(q + e, &sum_q, sizeof(F));
  }
}

alignas(64) constexpr int32_t kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
SYNOD_INLINE I lane_numbers() {
  I lanes;
  __builtin_memcpy(&lanes, kLaneNumbers, sizeof(I));
  return lanes;
}

// The least of all lanes, in every lane.
SYNOD_INLINE F least_lane(F v) {
  for (int d = kLanes / 2; d > 0; d /= 2) {
    const F other = __builtin_shuffle(v, lane_numbers() ^ d);
    v = other < v ? other : v;
  }
  return v;
}
SYNOD_INLINE I least_lane_int(I v) {
  for (int d = kLanes / 2; d > 0; d /= 2) v = min_int(v, __builtin_shuffle(v, lane_numbers() ^ d));
  return v;
}

// Four multipliers share the loads of a pass over the entries. A lane sees every kLanes-th entry in ascending
// order and keeps its first minimum; of equal minima the lowest entry wins.
void nearest(const float* p, const float* q, int n_entries, const float* multipliers, int n,
             int32_t* entries) {
  for (int k = 0; k < n; k += 4) {
    F least[4];
    I index[4];
    for (int t = 0; t < 4; ++t) {
      least[t] = splat(__FLT_MAX__);
      index[t] = I{};
    }
    I at = lane_numbers();
    for (int e = 0; e < n_entries; e += kLanes) {
      F pe;
      F qe;
      __builtin_memcpy(&pe, p + e, sizeof(F));
      __builtin_memcpy(&qe, q + e, sizeof(F));
      pe *= 2.0F;
      for (int t = 0; t < 4; ++t) {
        const F error = multipliers[k + t] * qe - pe;
        const I less = error < least[t];
        least[t] = less ? error : least[t];
        index[t] = less ? at : index[t];
      }
      at += kLanes;
    }
    for (int t = 0; t < 4; ++t) {
      const I winners = choose_int(least[t] == least_lane(least[t]), index[t], splat_int(0x7fffffff));
      entries[k + t] = least_lane_int(winners)[0];
    }
  }
}

#undef SYNOD_INLINE
