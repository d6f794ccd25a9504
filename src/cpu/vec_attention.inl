// The online softmax over V, 16 floats of the including file's instruction set, and the table of all helpers.

float softmax(float* s, int64_t lo, int64_t hi, float* m, float* l) {
  constexpr float kMinusInf = -__builtin_inff();
  for (int64_t j = 0; j < lo; ++j) s[j] = kMinusInf;
  for (int64_t j = hi; j < kChunkKeys; ++j) s[j] = kMinusInf;
  V v[4];
  for (int i = 0; i < 4; ++i) v[i] = load(s + 16 * i);
  const float top = max_lanes(vmax(vmax(v[0], v[1]), vmax(v[2], v[3])));
  const float new_m = *m > top ? *m : top;
  for (int i = 0; i < 4; ++i) {
    v[i] = vexp(v[i] - set1(new_m));
    store(s + 16 * i, v[i]);
  }
  const float correction = exp1(*m - new_m);
  *l = __builtin_fmaf(*l, correction, sum_lanes((v[0] + v[2]) + (v[1] + v[3])));
  *m = new_m;
  return correction;
}

// kRows rows of o, kVectors x 16 dimensions at `at`; `get` and `put` access them.
template <int kRows, int kVectors, typename Get, typename Put>
inline void add_values_block(const float* p, const float* const* v, int64_t lo, int64_t hi, int64_t at,
                             const float* correction, float* o, int64_t o_stride, Get get, Put put) {
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) {
      sum[r][i] = get(o + r * o_stride + at + 16 * i) * set1(correction[r]);
    }
  }
  for (int64_t j = lo; j < hi; ++j) {
    const float* value = v[j] + at;
    V x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = get(value + 16 * i);
    for (int r = 0; r < kRows; ++r) {
      const V weight = set1(p[r * kChunkKeys + j]);
      for (int i = 0; i < kVectors; ++i) sum[r][i] = fma(weight, x[i], sum[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) put(o + r * o_stride + at + 16 * i, sum[r][i]);
  }
}

template <int kRows>
void add_values_of(const float* p, const float* const* v, int64_t lo, int64_t hi, int64_t d,
                   const float* correction, float* o, int64_t o_stride) {
  constexpr int kVectors = kAccumulators / kRows < 8 ? kAccumulators / kRows : 8;
  const auto get = [](const float* x) { return load(x); };
  const auto put = [](float* x, V y) { store(x, y); };
  int64_t at = 0;
  for (; at + 16 * kVectors <= d; at += 16 * kVectors) {
    add_values_block<kRows, kVectors>(p, v, lo, hi, at, correction, o, o_stride, get, put);
  }
  for (; at + 16 <= d; at += 16) {
    add_values_block<kRows, 1>(p, v, lo, hi, at, correction, o, o_stride, get, put);
  }
  if (at == d) return;
  const int64_t rest = d - at;
  add_values_block<kRows, 1>(
      p, v, lo, hi, at, correction, o, o_stride, [rest](const float* x) { return load_part(x, rest); },
      [rest](float* x, V y) { store_part(x, y, rest); });
}

void add_values(const float* p, int64_t n_rows, const float* const* v, int64_t lo, int64_t hi, int64_t d,
                const float* correction, float* o, int64_t o_stride) {
  int64_t r = 0;
  for (; r + 4 <= n_rows; r += 4) {
    add_values_of<4>(p + r * kChunkKeys, v, lo, hi, d, correction + r, o + r * o_stride, o_stride);
  }
  if (r + 2 <= n_rows) {
    add_values_of<2>(p + r * kChunkKeys, v, lo, hi, d, correction + r, o + r * o_stride, o_stride);
    r += 2;
  }
  if (r < n_rows) {
    add_values_of<1>(p + r * kChunkKeys, v, lo, hi, d, correction + r, o + r * o_stride, o_stride);
  }
}

void merge(float* m, float* l, float* o, float m2, float l2, const float* o2, int64_t d) {
  const float top = *m > m2 ? *m : m2;
  const float a = exp1(*m - top), b = exp1(m2 - top);
  *l = __builtin_fmaf(*l, a, l2 * b);
  *m = top;
  const V va = set1(a), vb = set1(b);
  for_lanes(d, [&](auto get, auto put) { put(o, fma(get(o), va, get(o2) * vb)); });
}

void finish(float m, float l, const float* o, float sink, int64_t d, float* out) {
  float factor = 1.0F, mass = l;
  if (!(sink == -__builtin_inff())) {
    const float top = m > sink ? m : sink;
    factor = exp1(m - top);
    // An infinite sink takes all of the mass; exp(inf - inf) would be NaN.
    mass = __builtin_fmaf(l, factor, sink == top ? 1.0F : exp1(sink - top));
  }
  const V f = set1(factor), den = set1(mass);
  for_lanes(d, [&](auto get, auto put) { put(out, get(o) * f / den); });
}

constexpr VecTable make_table(std::string_view name) {
  return {.name = name,
          .sum_squares = sum_squares,
          .scale_by = scale_by,
          .glu = glu,
          .add = add,
          .soft_cap = soft_cap,
          .rotate_halves = rotate_halves,
          .rotate_interleaved = rotate_interleaved,
          .weighted_sum = weighted_sum,
          .dots = dots,
          .softmax = softmax,
          .add_values = add_values,
          .merge = merge,
          .finish = finish,
          .from_bf16 = from_bf16,
          .from_f16 = from_f16};
}
