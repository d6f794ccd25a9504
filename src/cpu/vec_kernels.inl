// Elementwise helpers and dot products over V, 16 floats of the including file's instruction set.

// The first n < 16 floats; the other lanes are 0.
inline V load_part(const float* p, int64_t n) {
  float lanes[16] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}

inline void store_part(float* p, V x, int64_t n) {
  float lanes[16];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

// Calls f(load, store, i) for every group of 16 elements; the last may be partial. `f` must treat lanes
// alike.
template <typename F>
inline void for_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    f([i](const float* p) { return load(p + i); }, [i](float* p, V x) { store(p + i, x); });
  }
  if (i < n) {
    f([i, n](const float* p) { return load_part(p + i, n - i); },
      [i, n](float* p, V x) { store_part(p + i, x, n - i); });
  }
}

// exp(x) = scale * (1 + rest) with scale a power of two and rest = exp(r) - 1, |r| <= ln(2) / 2; exp(0) is 1
// exactly. Relative error of 1 + rest below 1e-7. x must lie in [-87, 88] or be NaN.
struct ExpParts {
  V scale, rest;
};

inline ExpParts exp_parts(V x) {
  constexpr float kShift = 0x1.8p23F;  // adding it rounds to the nearest integer
  const V shifted = fma(x, set1(0x1.715476p+0F), set1(kShift));
  const V n = shifted - set1(kShift);
  V r = fma(n, set1(-0x1.62e4p-1F), x);
  r = fma(n, set1(-0x1.7f7d1cp-20F), r);
  // (exp(r) - 1 - r) / r^2 interpolated at the Chebyshev nodes of the interval.
  V q = set1(0x1.62819ap-10F);
  q = fma(q, r, set1(0x1.120be2p-7F));
  q = fma(q, r, set1(0x1.5561dp-5F));
  q = fma(q, r, set1(0x1.5554dcp-3F));
  q = fma(q, r, set1(0x1.fffff4p-2F));
  return {power_of_two(shifted), fma(q * r, r, r)};
}

inline V clamp(V x, float low, float high) { return vmin(set1(high), vmax(set1(low), x)); }

// exp(x) for x in any range: 0 below -87, and not above exp(88).
inline V vexp(V x) {
  const ExpParts e = exp_parts(clamp(x, -87.0F, 88.0F));
  return zero_below(x, set1(-87.0F), fma(e.scale, e.rest, e.scale));
}

inline float exp1(float x) { return first_lane(vexp(set1(x))); }

// tanh(u) = t / (t + 2), t = exp(2 u) - 1: accurate near 0 as well.
inline V vtanh(V u) {
  const ExpParts e = exp_parts(clamp(u + u, -40.0F, 40.0F));
  const V t = fma(e.scale, e.rest, e.scale - set1(1.0F));
  return t / (t + set1(2.0F));
}

float sum_squares(const float* x, int64_t n) {
  V s[4] = {set1(0.0F), set1(0.0F), set1(0.0F), set1(0.0F)};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const V v = load(x + i + 16 * j);
      s[j] = fma(v, v, s[j]);
    }
  }
  for (int j = 0; i < n; i += 16, ++j) {
    const V v = i + 16 <= n ? load(x + i) : load_part(x + i, n - i);
    s[j] = fma(v, v, s[j]);
  }
  return sum_lanes((s[0] + s[2]) + (s[1] + s[3]));
}

void scale_by(const float* x, float factor, const float* weight, int64_t n, float* out) {
  const V f = set1(factor);
  if (weight == nullptr) {
    for_lanes(n, [&](auto get, auto put) { put(out, get(x) * f); });
  } else {
    for_lanes(n, [&](auto get, auto put) { put(out, get(x) * f * get(weight)); });
  }
}

// Both activations are z * sigmoid(y): y = z, or y = 2 sqrt(2 / pi) (z + 0.044715 z^3), as
// (1 + tanh(u)) / 2 = sigmoid(2 u).
template <Gate kAct>
inline V gated(V z) {
  V y = z;
  if constexpr (kAct == Gate::kGeluTanh) {
    constexpr float kTwice = 1.5957691216057308F;  // 2 sqrt(2 / pi)
    y = z * fma(z * z, set1(kTwice * 0.044715F), set1(kTwice));
  }
  return z / (set1(1.0F) + vexp(set1(0.0F) - y));
}

template <Gate kAct>
void glu_of(const float* gate, const float* up, int64_t n, float limit, float weight, float* out) {
  const V top = set1(limit), bottom = set1(-limit), w = set1(weight);
  const bool clamped = limit > 0.0F;
  for_lanes(n, [&](auto get, auto put) {
    V g = get(gate), u = get(up);
    if (clamped) g = vmin(top, g), u = vmin(top, vmax(bottom, u));
    put(out, gated<kAct>(g) * u * w);
  });
}

void glu(const float* gate, const float* up, int64_t n, Gate act, float limit, float weight, float* out) {
  if (act == Gate::kSilu) {
    glu_of<Gate::kSilu>(gate, up, n, limit, weight, out);
  } else {
    glu_of<Gate::kGeluTanh>(gate, up, n, limit, weight, out);
  }
}

void add(const float* a, const float* b, float factor, int64_t n, float* out) {
  const V f = set1(factor);
  for_lanes(n, [&](auto get, auto put) { put(out, (get(a) + get(b)) * f); });
}

void soft_cap(float* x, float cap, int64_t n) {
  const V c = set1(cap);
  for_lanes(n, [&](auto get, auto put) { put(x, c * vtanh(get(x) / c)); });
}

void rotate_halves(float* a, float* b, const float* cosines, const float* sines, int64_t n) {
  for_lanes(n, [&](auto get, auto put) {
    const V x = get(a), y = get(b), c = get(cosines), s = get(sines);
    put(a, x * c - y * s);
    put(b, y * c + x * s);
  });
}

void rotate_interleaved(float* a, const float* cosines, const float* sines, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = a[2 * i], y = a[2 * i + 1], c = cosines[i], s = sines[i];
    a[2 * i] = x * c - y * s;
    a[2 * i + 1] = y * c + x * s;
  }
}

void weighted_sum(const float* y, float first, const float* const* x, const float* weights, int64_t stride,
                  int64_t n_terms, int64_t n, float* out) {
  const V f = set1(first);
  for_lanes(n, [&](auto get, auto put) {
    V sum = y == nullptr ? set1(0.0F) : get(y) * f;
    for (int64_t j = 0; j < n_terms; ++j) sum = fma(set1(weights[j * stride]), get(x[j]), sum);
    put(out, sum);
  });
}

// Lanes of kQ x kK dot products: acc[i * kStride + j] of q[i] and k[j].
template <int kQ, int kK, int kStride>
inline void dot_lanes(const float* const* q, const float* const* k, int64_t n, V* acc) {
  V s[kQ][kK];
  const float *qp[kQ], *kp[kK];
  for (int i = 0; i < kQ; ++i) qp[i] = q[i];
  for (int j = 0; j < kK; ++j) kp[j] = k[j];
  for (int i = 0; i < kQ; ++i) {
    for (int j = 0; j < kK; ++j) s[i][j] = set1(0.0F);
  }
  const auto step = [&](auto get) {
    V kv[kK];
    for (int j = 0; j < kK; ++j) kv[j] = get(kp[j]);
    for (int i = 0; i < kQ; ++i) {
      const V qv = get(qp[i]);
      for (int j = 0; j < kK; ++j) s[i][j] = fma(qv, kv[j], s[i][j]);
    }
  };
  int64_t at = 0;
  for (; at + 16 <= n; at += 16) step([at](const float* p) { return load(p + at); });
  if (at < n) step([at, n](const float* p) { return load_part(p + at, n - at); });
  for (int i = 0; i < kQ; ++i) {
    for (int j = 0; j < kK; ++j) acc[i * kStride + j] = s[i][j];
  }
}

// kQ rows of q times all of k, 16 products at a time.
template <int kQ>
void dots_of(const float* const* q, const float* const* k, int64_t n_k, int64_t n, float scale, float* out,
             int64_t out_stride) {
  constexpr int kKeys = 16 / kQ;
  constexpr int kStep = kAccumulators / kQ < 8 ? kAccumulators / kQ : 8;
  for (int64_t first = 0; first < n_k; first += kKeys) {
    const int64_t n_valid = n_k - first < kKeys ? n_k - first : kKeys;
    const float* keys[kKeys];
    for (int64_t j = 0; j < kKeys; ++j) keys[j] = k[first + (j < n_valid ? j : 0)];
    V acc[16];
    for (int j = 0; j < kKeys; j += kStep) dot_lanes<kQ, kStep, kKeys>(q, keys + j, n, acc + j);
    float sums[16];
    store(sums, sum_lanes_of_16(acc) * set1(scale));
    for (int i = 0; i < kQ; ++i) {
      std::memcpy(out + i * out_stride + first, sums + i * kKeys,
                  static_cast<size_t>(n_valid) * sizeof(float));
    }
  }
}

void dots(const float* const* q, int64_t n_q, const float* const* k, int64_t n_k, int64_t n, float scale,
          float* out, int64_t out_stride) {
  int64_t i = 0;
  for (; i + 4 <= n_q; i += 4) dots_of<4>(q + i, k, n_k, n, scale, out + i * out_stride, out_stride);
  if (i + 2 <= n_q) {
    dots_of<2>(q + i, k, n_k, n, scale, out + i * out_stride, out_stride);
    i += 2;
  }
  if (i < n_q) dots_of<1>(q + i, k, n_k, n, scale, out + i * out_stride, out_stride);
}

void from_bf16(const uint16_t* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, load_bf16(in + i));
  if (i == n) return;
  uint16_t rest[16] = {};
  std::memcpy(rest, in + i, static_cast<size_t>(n - i) * sizeof(uint16_t));
  store_part(out + i, load_bf16(rest), n - i);
}

void from_f16(const uint16_t* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + i, load_f16(in + i));
  if (i == n) return;
  uint16_t rest[16] = {};
  std::memcpy(rest, in + i, static_cast<size_t>(n - i) * sizeof(uint16_t));
  store_part(out + i, load_f16(rest), n - i);
}
