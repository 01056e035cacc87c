// Hopper's wgmma (sm_90a): products of a warpgroup (128 threads), both operands in shared memory.
// Asynchronous: between wgmma_fence and wgmma_wait the accumulators and the operands belong to the
// tensor cores.
//
// An operand is a tile of rows of 64 bf16, swizzled<128> (swizzle.h), by address: a tile begins on
// kWgmmaAlignment. Layouts and fences by the PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions".
#pragma once

#include "cuda/kernels/device_code.h"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PB_HAS_WGMMA
#endif

namespace pb::cuda {

inline constexpr int kWgmmaAlignment = 1024;  // bytes

// The matrix descriptor of an operand: address / 16, leading stride 1, stride of 1024 / 16 between
// groups of eight rows, 128-byte swizzle. tile: at a column that is a multiple of 16; those from
// column 16 i on begin 32 i bytes after the tile.
__device__ __forceinline__ uint64_t wgmma_operand(const void* tile) {
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

// Keeps the compiler from moving what it does with accumulators over this place: it does not know
// that a product writes them later than its instruction says.
__device__ __forceinline__ void pin_accumulators([[maybe_unused]] float (&d)[64]) {
#if defined(__CUDA_ARCH__)
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

// Before the first product, and after registers of accumulators were written.
__device__ __forceinline__ void wgmma_fence(float (&d)[64]) {
  pin_accumulators(d);
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
// Half `half` of row `row` of an operand (rows, 16 columns). A thread of the warpgroup reads its
// part of the operands for the emulator, so that sanitizers know of it.
inline void read_operand(uint64_t tile, int row, int half, uint64_t (&bytes)[2]) {
  const uint64_t plain = ((tile & 0x3fff) << 4) +
                         static_cast<uint64_t>(row / 8) * ((tile >> 32 & 0x3fff) << 4) +
                         static_cast<uint64_t>(row % 8) * 128 + static_cast<uint64_t>(half) * 16;
  __builtin_memcpy(bytes, cuda_on_cpu::at_shared(plain ^ (plain >> 7 & 7) << 4), 16);
}
// Of a (64 rows) half a row, of b (128 rows) a row.
inline cuda_on_cpu::WgmmaPart read_part(uint64_t a, uint64_t b) {
  const int t = static_cast<int>(threadIdx.x % 128);
  cuda_on_cpu::WgmmaPart part;
  read_operand(a, t / 2, t % 2, part.a);
  read_operand(b, t, 0, part.b[0]);
  read_operand(b, t, 1, part.b[1]);
  return part;
}
#endif

// Waits until at most kLeft groups of the warpgroup are under way. With 0 the accumulators are
// there again.
template <int kLeft>
__device__ __forceinline__ void wgmma_wait(float (&d)[64]) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#elif !defined(__CUDACC__)
  uint64_t tiles[2];
  while (cuda_on_cpu::wgmma_next(kLeft, tiles)) {
    cuda_on_cpu::wgmma_finish(read_part(tiles[0], tiles[1]));
  }
#endif
  pin_accumulators(d);
}

// d (64x128) += a (64x16) b (128x16)^T. Thread t of the warpgroup has of d in number i row
// 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (t % 4) + i % 2.
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,"
      "%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, "
      "p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b), "r"(1));
#elif !defined(__CUDACC__)
  cuda_on_cpu::wgmma_m64n128k16(d, a, b, read_part(a, b));
#endif
}

}  // namespace pb::cuda
