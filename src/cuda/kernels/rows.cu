// Row programs: sequences of norms, sums, scales, gates and quantization over rows of one width. One block
// per row; thread i owns columns i, i + n, ..., in every step, so only norms need a barrier and the value
// written last stays in registers.
#include "cuda/kernels/digits.cuh"

namespace synod::cuda {
namespace {

constexpr int kMaxThreads = 512;

// The two inputs of a step: `first` (a), and `second` (b or a norm's weight).
template <int kPer>
struct Inputs {
  float first[kPer], second[kPer];
};

template <int kPer>
__global__ void __launch_bounds__(kMaxThreads) row_kernel(const __grid_constant__ RowProgram p) {
  __shared__ float scratch[32];
  begin();
  const int64_t r = blockIdx.x;
  const int n = static_cast<int>(blockDim.x), tid = static_cast<int>(threadIdx.x), d = p.d;
  const auto load_row = [&](const float* row, float(&to)[kPer]) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int i = tid + j * n;
      to[j] = row != nullptr && i < d ? row[i] : 0.0F;
    }
  };
  const auto second_of = [&](const RowStep& step) -> const float* {
    if (step.kind == RowStep::kNorm) return step.w;
    return step.b.p == nullptr ? nullptr : row_of(step.b, r);
  };
  Inputs<kPer> in;
  load_row(row_of(p.steps[0].a, r), in.first);
  load_row(second_of(p.steps[0]), in.second);
#pragma unroll 1
  for (int s = 0; s < p.n_steps; ++s) {
    const RowStep& step = p.steps[s];
    const bool more = s + 1 < p.n_steps, writes = step.kind != RowStep::kDigits;
    const RowStep& after = p.steps[more ? s + 1 : s];
    const float* dst = writes ? row_of(step.dst, r) : nullptr;
    const float *next_first = row_of(after.a, r), *next_second = second_of(after);
    // What this step does not write is loaded ahead.
    Inputs<kPer> next;
    const bool first_ahead = more && next_first != dst, second_ahead = more && next_second != dst;
    if (first_ahead) load_row(next_first, next.first);
    if (second_ahead) load_row(next_second, next.second);
    float(&v)[kPer] = in.first;
    if (step.kind == RowStep::kDigits) {
      uint8_t* row = step.digits.p + r * step.digits.stride;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int i = tid + j * n;
        if (i < d) write_digits(row, d, i / 32, v[j]);  // d and n are multiples of 32
      }
    } else if (step.kind == RowStep::kNorm) {
      float sum = 0.0F;
#pragma unroll
      for (int j = 0; j < kPer; ++j) sum = fmaf(v[j], v[j], sum);
      sum = block_sum(sum, scratch);
      const float factor = step.factor / sqrtf(sum / static_cast<float>(d) + step.eps);
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = v[j] * factor * (step.w == nullptr ? 1.0F : in.second[j]);
    } else if (step.kind == RowStep::kAdd) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = (v[j] + in.second[j]) * step.factor;
    } else if (step.kind == RowStep::kScale) {
      const float factor = step.w == nullptr ? step.factor : step.factor * step.w[0];
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] *= factor;
    } else if (step.kind == RowStep::kGlu) {
      const float weight = step.w == nullptr ? 1.0F : step.w[r];
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = glu(v[j], in.second[j], step.act, step.limit, weight);
    } else if (step.kind == RowStep::kSoftCap) {
#pragma unroll
      for (int j = 0; j < kPer; ++j) v[j] = step.factor * tanhf(v[j] / step.factor);
    }
    if (writes) {
      float* out = row_of(step.dst, r);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const int i = tid + j * n;
        if (i < d) out[i] = v[j];
      }
    }
    if (!more) break;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const float written = v[j];
      v[j] = first_ahead ? next.first[j] : written;
      in.second[j] = second_ahead ? next.second[j] : written;
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

// Digits of rows wider than a block holds in registers: one warp per 32 values.
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

}  // namespace

Launch row_program(const RowProgram& p) {
  const auto rows = static_cast<unsigned>(p.n_rows);
  int threads = p.d <= 32 ? 32 : p.d <= 512 ? (p.d + 127) / 128 * 32 : 256;
  if (p.d > 2048) threads = kMaxThreads;
  const int per = (p.d + threads - 1) / threads;
  const dim3 block(static_cast<unsigned>(threads));
  if (per <= 4) return make_launch("row_program", row_kernel<4>, rows, block, p);
  if (per <= 8) return make_launch("row_program", row_kernel<8>, rows, block, p);
  if (per <= 16) return make_launch("row_program", row_kernel<16>, rows, block, p);
  if (p.n_steps == 1 && p.steps[0].kind == RowStep::kDigits) {
    const int64_t warps = p.n_rows * (p.d / 32);
    return make_launch("digits", digits_kernel, static_cast<unsigned>((warps + 7) / 8), 256, p);
  }
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
