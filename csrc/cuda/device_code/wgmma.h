// Hopper's wgmma (sm_90a): products of a warpgroup (128 threads), whose operands are in shared
// memory, or the left one in registers. The products are asynchronous: between wgmma_fence and
// wgmma_wait the accumulators and the operands must not be accessed.
//
// An operand in shared memory is a tile of rows of 64 numbers of 16 bits, swizzled<128> (swizzle.h)
// by address; a tile is aligned to kWgmmaAlignment. The layouts and fences are in the PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#pragma once

#include "cuda/device_code/device_code.h"

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PB_HAS_WGMMA
#endif

namespace pb::cuda {

inline constexpr int kWgmmaAlignment = 1024;  // bytes

__device__ __forceinline__ uint64_t wgmma_address(const void* tile) {
#if defined(__CUDA_ARCH__)
  return (shared_address(tile) & 0x3ffff) >> 4;
#elif !defined(__CUDACC__)
  return (cuda_on_cpu::shared_offset(tile) & 0x3ffff) >> 4;
#else
  return 0;
#endif
}

// Returns the matrix descriptor of an operand whose rows are rows of the product's left side, or
// columns of its right side: address / 16, leading stride 1, stride of 1024 / 16 between groups of
// eight rows, 128-byte swizzle. `tile` points to a column that is a multiple of 16; column 16 i is
// 32 i bytes after the start of the tile.
__device__ __forceinline__ uint64_t wgmma_operand(const void* tile) {
  return wgmma_address(tile) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Returns the matrix descriptor of a right side whose rows are rows of the tile: 16 of them,
// starting at a multiple of eight. The columns from 64 on are in another tile, `bytes` after this
// one.
__device__ __forceinline__ uint64_t wgmma_rows(const void* tile, int bytes) {
  return wgmma_address(tile) | static_cast<uint64_t>(bytes >> 4) << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// Makes this thread's writes to shared memory, also those of cp.async, visible to wgmma. Called
// before the barrier that precedes the product.
__device__ __forceinline__ void fence_for_async_proxy() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::proxy_fence();
#endif
}

// Keeps the compiler from moving accesses to accumulators across this point: it does not know that
// a product writes them after its instruction.
template <int kSize>
__device__ __forceinline__ void pin_accumulators([[maybe_unused]] float (&d)[kSize]) {
#if defined(__CUDA_ARCH__)
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

// Orders register accesses before products. Called before the first product and after writes to
// registers of operands or accumulators.
__device__ __forceinline__ void wgmma_fence() {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Does the same before products that add to d.
template <int kSize>
__device__ __forceinline__ void wgmma_fence(float (&d)[kSize]) {
  pin_accumulators(d);
  wgmma_fence();
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
// Reads the 16 bytes at `offset` of an operand's tile without its swizzle.
inline void read_operand(uint64_t tile, uint64_t offset, uint64_t (&bytes)[2]) {
  const uint64_t plain = ((tile & 0x3fff) << 4) + offset;
  __builtin_memcpy(bytes, cuda_on_cpu::at_shared(plain ^ (plain >> 7 & 7) << 4), 16);
}
// Reads a thread's part of the operands for the emulator, so that sanitizers see the read.
inline cuda_on_cpu::WgmmaPart read_part(const cuda_on_cpu::WgmmaCall& call) {
  const unsigned t = threadIdx.x % 128;
  const auto stride = [](uint64_t tile, int bit) { return (tile >> bit & 0x3fff) << 4; };
  cuda_on_cpu::WgmmaPart part{};
  if (call.a_registers != nullptr) {
    __builtin_memcpy(part.a, call.a_registers, sizeof part.a);
  } else {  // half a row
    const uint64_t row = t / 2;
    read_operand(call.a, row / 8 * stride(call.a, 32) + row % 8 * 128 + t % 2 * 16, part.a);
  }
  const uint64_t per_row = call.n / 16;
  for (uint64_t i = 0; i < 2; ++i) {
    if (call.b_in_rows) {  // 16 columns of a row
      const uint64_t row = t / per_row;
      const uint64_t column = t % per_row * 16 + i * 8;
      if (row >= 16) continue;
      read_operand(call.b,
                   column / 64 * stride(call.b, 16) + row / 8 * stride(call.b, 32) + row % 8 * 128 +
                       column % 64 * 2,
                   part.b[i]);
    } else if (t < call.n) {  // a column
      read_operand(call.b, t / 8 * stride(call.b, 32) + t % 8 * 128 + i * 16, part.b[i]);
    }
  }
  return part;
}
inline void start_wgmma(float* d, const cuda_on_cpu::WgmmaCall& call) {
  cuda_on_cpu::wgmma(d, call, read_part(call));
}
#endif

// Waits until at most kLeft groups of the warpgroup are under way. With kLeft 0 the accumulators
// may be read again.
template <int kLeft, int kSize>
__device__ __forceinline__ void wgmma_wait(float (&d)[kSize]) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::WgmmaCall call;
  while (cuda_on_cpu::wgmma_next(kLeft, call)) cuda_on_cpu::wgmma_finish(read_part(call));
#endif
  pin_accumulators(d);
}

// The operand lists of inline assembly: d[i] and the 15 that follow, or all of d.
#define PB_FLOATS_16(c, d, i)                                                                   \
  c((d)[(i)]), c((d)[(i) + 1]), c((d)[(i) + 2]), c((d)[(i) + 3]), c((d)[(i) + 4]),              \
      c((d)[(i) + 5]), c((d)[(i) + 6]), c((d)[(i) + 7]), c((d)[(i) + 8]), c((d)[(i) + 9]),      \
      c((d)[(i) + 10]), c((d)[(i) + 11]), c((d)[(i) + 12]), c((d)[(i) + 13]), c((d)[(i) + 14]), \
      c((d)[(i) + 15])
#define PB_FLOATS_32(c, d) PB_FLOATS_16(c, d, 0), PB_FLOATS_16(c, d, 16)
#define PB_FLOATS_64(c, d) PB_FLOATS_32(c, d), PB_FLOATS_16(c, d, 32), PB_FLOATS_16(c, d, 48)
#define PB_NAMES_32                                                                            \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define PB_NAMES_64                                                                               \
  PB_NAMES_32                                                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PB_WGMMA(n, type, d, operands) \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" d "}, " operands ";\n"

// The layout of fragments. Number i of d in thread t is row 16 (t / 32) + t % 32 / 4 + 8 (i / 2 %
// 2), column 8 (i / 4) + 2 (t % 4) + i % 2. In registers, a has the layout of mma_bf16() for each
// warp's rows 16 (t / 32) to 16 (t / 32) + 15.

// d (64x128) += a (64x16) b (128x16)^T for bf16.
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile(PB_WGMMA(128, "bf16", PB_NAMES_64, "%64, %65, 1, 1, 1, 0, 0")
               : PB_FLOATS_64("+f", d)
               : "l"(a), "l"(b));
#elif !defined(__CUDACC__)
  start_wgmma(d, {.n = 128, .a = a, .b = b});
#endif
}

// d (64x64) = a (64x16) b (64x16)^T, or += if kAdds, for f16 or bf16.
template <bool kF16, bool kAdds>
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
#define PB_TWO_TILES(type, floats, adds)                                         \
  asm volatile(PB_WGMMA(64, type, PB_NAMES_32, "%32, %33, " adds ", 1, 1, 0, 0") \
               : floats                                                          \
               : "l"(a), "l"(b))
  if constexpr (kF16 && kAdds) PB_TWO_TILES("f16", PB_FLOATS_32("+f", d), "1");
  if constexpr (kF16 && !kAdds) PB_TWO_TILES("f16", PB_FLOATS_32("=f", d), "0");
  if constexpr (!kF16 && kAdds) PB_TWO_TILES("bf16", PB_FLOATS_32("+f", d), "1");
  if constexpr (!kF16 && !kAdds) PB_TWO_TILES("bf16", PB_FLOATS_32("=f", d), "0");
#undef PB_TWO_TILES
#elif !defined(__CUDACC__)
  start_wgmma(d, {.n = 64,
                  .input = kF16 ? cuda_on_cpu::MmaInput::kF16 : cuda_on_cpu::MmaInput::kBf16,
                  .adds = kAdds,
                  .a = a,
                  .b = b});
#endif
}

// d (64xn) += a (64x16) b (16xn) with n = 2 kSize, a in registers and b described by wgmma_rows().
template <bool kF16, int kSize>
__device__ __forceinline__ void wgmma_by_rows(float (&d)[kSize], const unsigned (&a)[4],
                                              uint64_t b) {
  static_assert(kSize == 32 || kSize == 64);
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
#define PB_BY_ROWS(n, type, names, floats, operands) \
  asm volatile(PB_WGMMA(n, type, names, operands)    \
               : floats                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define PB_BY_ROWS_32(type) \
  PB_BY_ROWS(64, type, PB_NAMES_32, PB_FLOATS_32("+f", d), "{%32,%33,%34,%35}, %36, 1, 1, 1, 1")
#define PB_BY_ROWS_64(type) \
  PB_BY_ROWS(128, type, PB_NAMES_64, PB_FLOATS_64("+f", d), "{%64,%65,%66,%67}, %68, 1, 1, 1, 1")
  if constexpr (kSize == 32 && kF16) PB_BY_ROWS_32("f16");
  if constexpr (kSize == 32 && !kF16) PB_BY_ROWS_32("bf16");
  if constexpr (kSize == 64 && kF16) PB_BY_ROWS_64("f16");
  if constexpr (kSize == 64 && !kF16) PB_BY_ROWS_64("bf16");
#undef PB_BY_ROWS_64
#undef PB_BY_ROWS_32
#undef PB_BY_ROWS
#elif !defined(__CUDACC__)
  start_wgmma(d, {.n = 2 * kSize,
                  .input = kF16 ? cuda_on_cpu::MmaInput::kF16 : cuda_on_cpu::MmaInput::kBf16,
                  .b_in_rows = true,
                  .a_registers = a,
                  .b = b});
#endif
}

#undef PB_WGMMA
#undef PB_NAMES_64
#undef PB_NAMES_32
#undef PB_FLOATS_64
#undef PB_FLOATS_32
#undef PB_FLOATS_16

}  // namespace pb::cuda
