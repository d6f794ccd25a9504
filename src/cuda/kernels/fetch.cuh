// Asynchronous copies into shared memory. A thread waits for its own; others' need a barrier as well.
#pragma once

#include "cuda/kernels/common.cuh"

namespace synod::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void fetch_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Through the first cache: what several warps of a processor read.
__device__ __forceinline__ void fetch_16_shared(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void fetch_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void fetch_16(void* to, const void* from) { fetch_16(shared_address(to), from); }
__device__ __forceinline__ void fetch_4(void* to, const void* from) { fetch_4(shared_address(to), from); }
__device__ __forceinline__ void end_fetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_fetch() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace synod::cuda
