// Hopper's matrix instruction (wgmma: 64 rows by kTokens columns by 16, A in registers, B in shared memory)
// and the barriers that its copies and products meet at.
#pragma once

#include "cuda/kernels/fetch.cuh"

namespace synod::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra wait;\n"
      "done:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// What this thread wrote to shared memory becomes visible to the matrix unit.
__device__ __forceinline__ void publish_to_matrix_unit() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Threads of some warps only: barrier `id` of 1 to 15.
__device__ __forceinline__ void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
__device__ __forceinline__ void keep_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand B: rows of 64 f16 (128 bytes, 16-byte pieces at piece ^ row % 8), eight rows in 1024 bytes.
__device__ __forceinline__ uint64_t operand_of(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFFU) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}
inline constexpr uint64_t kNextSixteen = 2;  // operand of the next 16 values of its rows

#define SYNOD_FOUR(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SYNOD_SIXTEEN(i) SYNOD_FOUR(i), SYNOD_FOUR((i) + 4), SYNOD_FOUR((i) + 8), SYNOD_FOUR((i) + 12)

// d (+)= a b: thread t of the warpgroup has rows 16 * (t / 32) + t % 32 / 4 and + 8; of every 8 columns two.
__device__ __forceinline__ void multiply_add(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,"
      "%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
      : SYNOD_SIXTEEN(0), SYNOD_SIXTEEN(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void multiply_add(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%"
      "27,"
      "%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%"
      "53,"
      "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
      : SYNOD_SIXTEEN(0), SYNOD_SIXTEEN(16), SYNOD_SIXTEEN(32), SYNOD_SIXTEEN(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#undef SYNOD_SIXTEEN
#undef SYNOD_FOUR

#endif

}  // namespace synod::cuda
