// Hopper's wgmma (sm_90a): products of a warpgroup (128 threads), both operands in shared memory in
// tiles of rows of 64 bf16, swizzled by 128 bytes. Asynchronous: between wgmma_fence and wgmma_wait
// the accumulators and the operands belong to the tensor cores.
#pragma once

#include "cuda/kernels/device_code.h"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PB_HAS_WGMMA
#endif

namespace pb::cuda {

// Where number `column` of row `row` lies in a tile, in bf16s from its start. The swizzle goes by
// address: a tile begins on a multiple of 1024 bytes.
__device__ __forceinline__ int swizzled(int row, int column) {
  return row * 64 + ((column / 8 ^ row % 8) * 8) + column % 8;
}

// The matrix descriptor of the PTX ISA: address / 16, leading stride 1, stride of 1024 / 16 between
// groups of eight rows, 128-byte swizzle. tile: at a column that is a multiple of 16.
__device__ __forceinline__ uint64_t wgmma_tile(const __nv_bfloat16* tile) {
#if defined(__CUDA_ARCH__)
  const uint64_t at = shared_address(tile);
#elif !defined(__CUDACC__)
  const uint64_t at = cuda_on_cpu::shared_offset(tile);
#else
  const uint64_t at = 0;
#endif
  return (at & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Makes what this thread wrote to shared memory, by cp.async too, visible to wgmma. Before the
// barrier that precedes the product.
__device__ __forceinline__ void fence_for_async_proxy() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::proxy_fence();
#endif
}

// Before the first product, and after registers of accumulators were written.
__device__ __forceinline__ void wgmma_fence() {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Ends a group of the warpgroup's products.
__device__ __forceinline__ void wgmma_commit() {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::wgmma_commit();
#endif
}

#ifndef __CUDACC__
// The 16 bytes of the operand (64 rows, 16 columns) that thread t of the warpgroup reads for the
// emulator, so that sanitizers know of it: half a row.
inline void read_operand(uint64_t tile, int t, uint64_t (&bytes)[2]) {
  const uint64_t plain = ((tile & 0x3fff) << 4) +
                         static_cast<uint64_t>(t / 16) * ((tile >> 32 & 0x3fff) << 4) +
                         static_cast<uint64_t>(t / 2 % 8) * 128 + static_cast<uint64_t>(t % 2) * 16;
  __builtin_memcpy(bytes, cuda_on_cpu::at_shared(plain ^ (plain >> 7 & 7) << 4), 16);
}
#endif

// Waits until at most kLeft groups of the warpgroup are under way. With 0 the accumulators are
// there again.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait() {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#elif !defined(__CUDACC__)
  uint64_t tiles[2];
  while (cuda_on_cpu::wgmma_next(kLeft, tiles)) {
    uint64_t a[2];
    uint64_t b[2];
    const int t = static_cast<int>(threadIdx.x % 128);
    read_operand(tiles[0], t, a);
    read_operand(tiles[1], t, b);
    cuda_on_cpu::wgmma_finish(a, b);
  }
#endif
}

// d (64x64) += a (64x16) b (64x16)^T. Thread t of the warpgroup has of d rows 16 (t / 32) +
// t % 32 / 4 and 8 below, columns 2 (t % 4) and the next of each eight.
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(1));
#elif !defined(__CUDACC__)
  uint64_t own_a[2];
  uint64_t own_b[2];
  const int t = static_cast<int>(threadIdx.x % 128);
  read_operand(a, t, own_a);
  read_operand(b, t, own_b);
  cuda_on_cpu::wgmma_m64n64k16(d, a, b, own_a, own_b);
#endif
}

}  // namespace pb::cuda
