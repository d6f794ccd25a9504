// Row programs: sequences of norms, sums, scales, gates and quantization over rows of one width. One block
// per row; a thread owns the same columns in every step. What a program reads is copied to shared memory
// at once, a warp per row (norm weights before the wait), and its intermediate rows stay there, so that only
// norms need a barrier and latency is paid once.
#include <algorithm>

#include "cuda/kernels/digits.cuh"
#include "cuda/kernels/fetch.cuh"

namespace synod::cuda {
namespace {

constexpr int kRowThreads = 768, kRowWarps = kRowThreads / 32;

// A step and its rows as the block sees them: in shared memory, where a look-up at run time is short.
struct Step {
  RowStep::Kind kind;
  int32_t act;
  int32_t a, b, kept;  // first values in shared memory; kept: of dst
  float* out;
  uint8_t* digits;
  float eps, factor, limit;
  bool weighted;
};

// Thread i owns pieces i, i + n, ... of kWide columns. kFew: norms, sums, scales and digits alone, which is
// what most programs are; the less code the sooner it is there.
template <int kPer, int kWide, bool kFew>
__global__ void __launch_bounds__(kRowThreads) row_kernel(const __grid_constant__ RowProgram p) {
  extern __shared__ __align__(16) float slots[];  // [p.n_slots][d]
  __shared__ __align__(16) float partial[2][kRowWarps];
  __shared__ float scalars[kMaxRowSteps];
  __shared__ Step steps[kMaxRowSteps];
  const int64_t r = blockIdx.x;
  const int n = static_cast<int>(blockDim.x), tid = static_cast<int>(threadIdx.x), d = p.d;
  const int lane = tid % 32, warp = tid / 32, n_warps = n / 32;
  const auto column = [&](int j) { return (tid + j * n) * kWide; };
  const auto fetch_row = [&](const float* row, int slot) {
    float* to = slots + slot * d;
#pragma unroll 4
    for (int i = lane * kWide; i < d; i += 32 * kWide) {
      if constexpr (kWide == 4) {
        fetch_16(to + i, row + i);
      } else {
        fetch_4(to + i, row + i);
      }
    }
  };
  // A warp per input row; the first of a warp is known before the wait.
  const float* row = nullptr;
  int slot = 0;
#pragma unroll 1
  for (int i = warp; i < p.n_inputs; i += n_warps) {
    if (p.inputs[i].constant != nullptr) {
      fetch_row(p.inputs[i].constant, p.inputs[i].slot);
    } else if (row == nullptr) {
      row = row_of(p.inputs[i].rows, r), slot = p.inputs[i].slot;
    }
  }
  for (int i = tid; i < 2 * kRowWarps; i += n) partial[i / kRowWarps][i % kRowWarps] = 0.0F;
  if (tid < p.n_steps) {
    const RowStep& from = p.steps[tid];
    Step& step = steps[tid];
    step.kind = from.kind, step.act = from.act;
    step.a = from.slot_a * d, step.b = from.slot_b * d, step.kept = from.slot_dst * d;
    step.out = from.kind == RowStep::kDigits ? nullptr : row_of(from.dst, r);
    step.digits = from.digits.p + r * from.digits.stride;
    step.eps = from.eps, step.factor = from.factor, step.limit = from.limit;
    step.weighted = from.w != nullptr;
  }
  const int n_steps = p.n_steps;
  const float inverse_d = 1.0F / static_cast<float>(d);
  begin();
  if (row != nullptr) fetch_row(row, slot);
#pragma unroll 1
  for (int i = warp; i < p.n_inputs; i += n_warps) {
    if (p.inputs[i].constant == nullptr && p.inputs[i].slot != slot) {
      fetch_row(row_of(p.inputs[i].rows, r), p.inputs[i].slot);
    }
  }
  if (tid < n_steps) {
    const RowStep& step = p.steps[tid];
    const bool scales = step.w != nullptr && step.kind != RowStep::kNorm;
    scalars[tid] = scales ? step.w[step.kind == RowStep::kGlu ? r : 0] : 1.0F;
  }
  end_fetch();
  wait_fetch<0>();
  __syncthreads();
  int norms = 0;
#pragma unroll 1
  for (int s = 0; s < n_steps; ++s) {
    const Step& step = steps[s];
    const RowStep::Kind kind = step.kind;
    const float *first = slots + step.a, *second = slots + step.b;
    RowPiece<kWide> v[kPer];
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if (column(j) < d) {
        v[j].load_from(first + column(j));
      } else {
#pragma unroll
        for (int e = 0; e < kWide; ++e) v[j].v[e] = 0.0F;
      }
    }
    if (kind == RowStep::kDigits) {
      uint8_t* digits = step.digits;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {  // d is a multiple of 32: a block of values is there or not
        const int i = column(j);
        if constexpr (kWide == 4) {
          write_digits(digits, d, i / 32, make_float4(v[j].v[0], v[j].v[1], v[j].v[2], v[j].v[3]), i < d,
                       0xffffffffU);
        } else if (i < d) {  // n is a multiple of 32: by whole warps
          write_digits(digits, d, i / 32, v[j].v[0]);
        }
      }
      continue;
    }
    // Applies f(value, second value) to every column.
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        if (column(j) >= d) break;
        RowPiece<kWide> b;
        b.load_from(second + column(j));
#pragma unroll
        for (int e = 0; e < kWide; ++e) v[j].v[e] = f(v[j].v[e], b.v[e]);
      }
    };
    if (kind == RowStep::kNorm) {
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
#pragma unroll
        for (int e = 0; e < kWide; ++e) sum = fmaf(v[j].v[e], v[j].v[e], sum);
      }
      // Over the block in a fixed order, with zeros for warps that are not there. Two sets of partial sums: a
      // warp that is ahead by one norm has passed the barrier that all readers of the older set had reached.
      sum = warp_sum(sum);
      float* parts = partial[norms++ % 2];
      if (lane == 0) parts[warp] = sum;
      __syncthreads();
      sum = 0.0F;
#pragma unroll
      for (int w = 0; w < kRowWarps; w += 4) {
        const float4 four = *reinterpret_cast<const float4*>(parts + w);
        sum += (four.x + four.y) + (four.z + four.w);
      }
      const float factor = step.factor * rsqrtf(fmaf(sum, inverse_d, step.eps));
      const bool weighted = step.weighted;
      each([&](float a, float b) { return a * factor * (weighted ? b : 1.0F); });
    } else if (kind == RowStep::kAdd) {
      const float factor = step.factor;
      each([&](float a, float b) { return (a + b) * factor; });
    } else if (kind == RowStep::kScale) {
      const float factor = step.factor * scalars[s];
      each([&](float a, float) { return a * factor; });
    } else if (!kFew && kind == RowStep::kGlu) {
      const float limit = step.limit;
      const int act = step.act;
      each([&](float a, float b) { return glu(a, b, act, limit, scalars[s]); });
    } else if (!kFew && kind == RowStep::kSoftCap) {
      const float factor = step.factor;
      each([&](float a, float) { return factor * tanhf(a / factor); });
    }
    float *out = step.out, *kept = slots + step.kept;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if (column(j) >= d) break;
      v[j].store_to(out + column(j));
      v[j].store_to(kept + column(j));
    }
  }
}

// One value per thread and no norm; rows of any width.
__global__ void __launch_bounds__(256) elementwise_kernel(const __grid_constant__ RowProgram p) {
  begin();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t r = index / p.d, i = index % p.d;
  if (r >= p.n_rows) return;
  for (int s = 0; s < p.n_steps; ++s) {
    const RowStep& step = p.steps[s];
    float v = row_of(step.a, r)[i];
    const float b = step.b.p == nullptr ? 0.0F : row_of(step.b, r)[i];
    if (step.kind == RowStep::kAdd) v = (v + b) * step.factor;
    if (step.kind == RowStep::kScale) v *= step.w == nullptr ? step.factor : step.factor * step.w[0];
    if (step.kind == RowStep::kGlu) {
      v = glu(v, b, step.act, step.limit, step.w == nullptr ? 1.0F : step.w[r]);
    }
    if (step.kind == RowStep::kSoftCap) v = step.factor * tanhf(v / step.factor);
    row_of(step.dst, r)[i] = v;
  }
}

// Digits alone: one warp per 32 values.
__global__ void __launch_bounds__(256) digits_kernel(const __grid_constant__ RowProgram p) {
  begin();
  const int64_t blocks = p.d / 32;
  const int64_t w = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  const int64_t r = w / blocks;
  if (r >= p.n_rows) return;
  const auto block = static_cast<int>(w % blocks);
  const RowStep& step = p.steps[0];
  write_digits(step.digits.p + r * step.digits.stride, p.d, block,
               row_of(step.a, r)[block * 32 + threadIdx.x % 32]);
}

// A norm of rows of any width.
__global__ void __launch_bounds__(1024) wide_norm_kernel(const __grid_constant__ RowProgram p) {
  __shared__ float scratch[32];
  begin();
  const RowStep& step = p.steps[0];
  const float* a = row_of(step.a, blockIdx.x);
  float* dst = row_of(step.dst, blockIdx.x);
  float sum = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < p.d; i += 1024) sum = fmaf(a[i], a[i], sum);
  sum = block_sum(sum, scratch);
  const float factor = step.factor / sqrtf(sum / static_cast<float>(p.d) + step.eps);
  for (int i = static_cast<int>(threadIdx.x); i < p.d; i += 1024) {
    dst[i] = a[i] * factor * (step.w == nullptr ? 1.0F : step.w[i]);
  }
}

// A slot of shared memory per tensor and norm weight; those read before they are written are inputs.
int assign_slots(RowProgram& p) {
  View views[3 * kMaxRowSteps];
  const float* weights[3 * kMaxRowSteps] = {};
  int n = 0;
  p.n_inputs = 0;
  const auto slot_of = [&](const View& v, bool read) {
    for (int i = 0; i < n; ++i) {
      const View& u = views[i];
      if (weights[i] == nullptr && u.p == v.p && u.s0 == v.s0 && u.s1 == v.s1 && u.n1 == v.n1) return i;
    }
    views[n] = v;
    if (read) p.inputs[p.n_inputs++] = {.rows = v, .slot = n};
    return n++;
  };
  const auto weight_slot = [&](const float* w) {
    for (int i = 0; i < n; ++i) {
      if (weights[i] == w) return i;
    }
    weights[n] = w;
    p.inputs[p.n_inputs++] = {.constant = w, .slot = n};
    return n++;
  };
  for (int s = 0; s < p.n_steps; ++s) {
    RowStep& step = p.steps[s];
    step.slot_a = slot_of(step.a, true);
    if (step.b.p != nullptr) step.slot_b = slot_of(step.b, true);
    if (step.kind == RowStep::kNorm && step.w != nullptr) step.slot_b = weight_slot(step.w);
    if (step.kind != RowStep::kDigits) step.slot_dst = slot_of(step.dst, false);
  }
  return n;
}

// Every row begins at a multiple of 16 bytes.
bool wide_rows(const RowProgram& p) {
  const auto aligned = [](const View& v) {
    return reinterpret_cast<uintptr_t>(v.p) % 16 == 0 && v.s0 % 4 == 0 && (v.n1 == 1 || v.s1 % 4 == 0);
  };
  bool all = p.d % 4 == 0;
  for (int i = 0; i < p.n_steps; ++i) {
    const RowStep& step = p.steps[i];
    all = all && aligned(step.a) && (step.b.p == nullptr || aligned(step.b));
    all = all && (step.kind == RowStep::kDigits || aligned(step.dst));
    if (step.kind == RowStep::kNorm) all = all && reinterpret_cast<uintptr_t>(step.w) % 16 == 0;
  }
  return all;
}

}  // namespace

int row_slots(const RowProgram& p) {
  RowProgram copy = p;
  return assign_slots(copy);
}

Launch row_program(RowProgram p) {
  const auto rows = static_cast<unsigned>(p.n_rows);
  const size_t bytes = sizeof(float) * static_cast<size_t>(assign_slots(p)) * static_cast<size_t>(p.d);
  if (p.n_steps == 1 && p.steps[0].kind == RowStep::kDigits) {  // nothing that needs the row as a whole
    const int64_t warps = p.n_rows * (p.d / 32);
    return make_launch("digits", digits_kernel, static_cast<unsigned>((warps + 7) / 8), 256, p);
  }
  const bool wide = wide_rows(p);
  const int pieces = wide ? p.d / 4 : p.d;
  const int threads = std::clamp((pieces + 31) / 32 * 32, 32, kRowThreads);
  const int per = (pieces + threads - 1) / threads;
  const dim3 block(static_cast<unsigned>(threads));
  bool few = true;
  for (int i = 0; i < p.n_steps; ++i) {
    few = few && p.steps[i].kind != RowStep::kGlu && p.steps[i].kind != RowStep::kSoftCap;
  }
  const auto launch = [&](auto kernel) { return make_launch("row_program", kernel, rows, block, p, bytes); };
  if (wide && per <= 1) return few ? launch(row_kernel<1, 4, true>) : launch(row_kernel<1, 4, false>);
  if (wide && per <= 3) return few ? launch(row_kernel<3, 4, true>) : launch(row_kernel<3, 4, false>);
  if (!wide && per <= 2) return launch(row_kernel<2, 1, false>);
  if (!wide && per <= 12) return launch(row_kernel<12, 1, false>);
  if (p.n_steps == 1 && p.steps[0].kind == RowStep::kNorm) {
    return make_launch("wide_norm", wide_norm_kernel, rows, 1024, p);
  }
  return elementwise(p);
}

Launch elementwise(const RowProgram& p) {
  const int64_t values = p.n_rows * p.d;
  return make_launch("elementwise", elementwise_kernel, static_cast<unsigned>((values + 255) / 256), 256, p);
}

}  // namespace synod::cuda
