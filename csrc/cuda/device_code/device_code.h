// The vocabulary of device code for two compilers: nvcc, which compiles for GPUs, and g++, which
// compiles for the emulator of tests/native/cuda_on_cpu/. PTX instructions are wrapped here;
// kernels contain no assembly.
//
// Rules for kernels:
//   - A kernel is PB_KERNEL(name, Params, most_threads) { ... p ... }, in an unnamed namespace.
//     Params is one struct of numbers and device pointers, which the host fills (params_*.h). A
//     PB_LARGE_KERNEL may use all registers; for other kernels ptxas may spill registers to fit
//     more blocks on a multiprocessor. A PB_CROWDED_KERNEL has to leave room for n_blocks blocks on
//     a multiprocessor.
//   - Shared memory is DYNAMIC_SHARED(T, name), or SharedArrays for more than one array, or
//     `__shared__ T name[n]`.
//   - Shuffles, ldmatrix and mma order no memory; __syncthreads and __syncwarp do.
//   - Fast-math intrinsics are not used; exp_of() computes e^x. Code is compiled with -fmad=false
//     and -ffp-contract=off: a fused multiply-add is written __fmaf_rn.
//   - Every reduction has a fixed order (ADR 0003). There are no atomics on floats.
//   - A block never waits for another block: dependent work is another launch.
#pragma once

#include <cstdint>

#include "cuda/device_code/shared_bytes.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(128) unsigned char dynamic_shared_[]; \
  T* name = reinterpret_cast<T*>(dynamic_shared_)
#define PB_KERNEL(name, Params, most_threads) \
  extern "C" __global__ void __launch_bounds__(most_threads) name(const __grid_constant__ Params p)
#define PB_CROWDED_KERNEL(name, Params, most_threads, n_blocks)        \
  extern "C" __global__ void __launch_bounds__(most_threads, n_blocks) \
      name(const __grid_constant__ Params p)
#define PB_LARGE_KERNEL(name, Params, most_threads) PB_CROWDED_KERNEL(name, Params, most_threads, 1)
// The call site of a warp operation, for the emulator's error messages.
#define PB_CALLER
#else
#include "cuda_on_cpu.h"

#define PB_KERNEL(name, Params, most_threads)                                 \
  static void name(const Params& p);                                          \
  static const ::cuda_on_cpu::Registered name##_registered(                   \
      #name, most_threads, sizeof(Params),                                    \
      [](const void* params) { name(*static_cast<const Params*>(params)); }); \
  static void name([[maybe_unused]] const Params& p)
#define PB_LARGE_KERNEL PB_KERNEL
#define PB_CROWDED_KERNEL(name, Params, most_threads, n_blocks) \
  PB_KERNEL(name, Params, most_threads)
#define PB_CALLER , CUDA_ON_CPU_CALLER
#endif

namespace pb::cuda {

#ifdef __CUDA_ARCH__
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
#endif

// The arrays of a block in its dynamic shared memory, one after another, with the offsets that
// SharedBytes computes. All threads take the same arrays. Under AddressSanitizer, the emulator puts
// a guard between arrays; it refuses to take more than the launch allocated. A kernel that uses
// this class has no DYNAMIC_SHARED.
class SharedArrays {
 public:
  // The elements are not initialised. alignment is a power of two up to 1024.
  template <typename T>
  __device__ __forceinline__ T* take(size_t n, size_t alignment = 16) {
#ifdef __CUDACC__
    extern __shared__ __align__(1024) unsigned char arrays_[];
    const size_t at = aligned_offset(offset_, alignment);
    offset_ = at + n * sizeof(T);
    return reinterpret_cast<T*>(arrays_ + at);
#else
    return static_cast<T*>(cuda_on_cpu::take_shared(offset_, guards_, n * sizeof(T), alignment));
#endif
  }

 private:
  size_t offset_ = 0;
#ifndef __CUDACC__
  size_t guards_ = 0;
#endif
};

// Copies 16 bytes from global to shared memory, both aligned to 16; only the first `bytes` (0..16)
// are read, the rest is filled with zeros. The copy is visible to this thread after cp_async_wait,
// and to other threads after a barrier in addition.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, unsigned bytes) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
#elif !defined(__CUDACC__)
  const void* const read = bytes != 0 ? from : to;
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(read)) % 16 != 0) {
    cuda_on_cpu::fail("cp.async: an address is not a multiple of 16");
  }
  // NaN is written at once, so that a read before the copy, or of the data before it, gets NaN and
  // tests detect the race.
  auto* words = static_cast<uint64_t*>(to);
  words[0] = words[1] = ~uint64_t{0};
  cuda_on_cpu::async_note({to, from, bytes});
#endif
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void cp_async_commit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::async_commit();
#endif
}

// Waits until at most kLeft of this thread's groups are under way.
template <int kLeft>
__device__ __forceinline__ void cp_async_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::AsyncCopy copy;
  while (cuda_on_cpu::async_next(kLeft, copy)) {
    auto* to = static_cast<unsigned char*>(copy.to);
    const auto* from = static_cast<const unsigned char*>(copy.from);
    if (copy.bytes == 16) {
      __builtin_memcpy(to, from, 16);
    } else {
      for (unsigned i = 0; i < 16; ++i) to[i] = i < copy.bytes ? from[i] : 0;
    }
  }
#endif
}

// Loads four 8x8 matrices of 16-bit numbers from shared memory. Lane l passes the address of row l
// % 8 of matrix l / 8, which is aligned to 16 bytes. From each matrix, lane l receives columns 2 (l
// % 4) and the next of row l / 4; transposed, it receives these rows of column l / 4.
template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row PB_CALLER) {
#if defined(__CUDA_ARCH__)
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
#elif !defined(__CUDACC__)
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) cuda_on_cpu::fail("ldmatrix: row not aligned");
  uint64_t own[2];  // read by the lane itself, so that sanitizers attribute the read
  __builtin_memcpy(own, row, 16);
  cuda_on_cpu::ldmatrix(4, own, r, kTransposed, {file_, line_, "ldmatrix"});
#endif
}

// Loads the first two of the four matrices: lanes 0..15 pass addresses, the others' addresses are
// not used.
template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix_x2(unsigned (&r)[2], const void* row PB_CALLER) {
#if defined(__CUDA_ARCH__)
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
  }
#elif !defined(__CUDACC__)
  uint64_t own[2] = {};
  if (cuda_on_cpu::lane() < 16) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) cuda_on_cpu::fail("ldmatrix: row not aligned");
    __builtin_memcpy(own, row, 16);
  }
  cuda_on_cpu::ldmatrix(2, own, r, kTransposed, {file_, line_, "ldmatrix"});
#endif
}

// c (16x8) += a (16x16) b (16x8), with the fragment layout of the PTX ISA for m16n8k16 .bf16.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2] PB_CALLER) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
  cuda_on_cpu::mma_m16n8k16(cuda_on_cpu::MmaInput::kBf16, c, a, b, {file_, line_, "mma"});
#endif
}

// Computes the same product for f16 inputs; the fragment layout is the same.
__device__ __forceinline__ void mma_f16(float (&c)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2] PB_CALLER) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif !defined(__CUDACC__)
  cuda_on_cpu::mma_m16n8k16(cuda_on_cpu::MmaInput::kF16, c, a, b, {file_, line_, "mma"});
#endif
}

// Returns two numbers rounded to bf16 in one register, `low` in its lower half, as in fragments.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__)
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return unsigned{__bfloat16_as_ushort(__float2bfloat16_rn(low))} |
         unsigned{__bfloat16_as_ushort(__float2bfloat16_rn(high))} << 16;
#endif
}

// Returns two numbers rounded to f16 in one register. Magnitudes of 65520 or more become infinite.
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
#if defined(__CUDA_ARCH__)
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return unsigned{__half_as_ushort(__float2half_rn(low))} |
         unsigned{__half_as_ushort(__float2half_rn(high))} << 16;
#endif
}

// e^x = (1 + r p) 2^n. The whole number n is in the last bits of t.
struct ReducedExp {
  float r;
  float p;
  float t;
};

__device__ __forceinline__ ReducedExp reduced_exp(float x) {
  const float t = __fmaf_rn(x, 1.44269504f, 12582912.0f);  // rounds to a whole number
  const float n = t - 12582912.0f;
  float r = __fmaf_rn(n, -0.693145752f, x);
  r = __fmaf_rn(n, -1.42860677e-6f, r);
  float p = 1.38888889e-3f;
  p = __fmaf_rn(p, r, 8.33333333e-3f);
  p = __fmaf_rn(p, r, 4.16666667e-2f);
  p = __fmaf_rn(p, r, 1.66666667e-1f);
  p = __fmaf_rn(p, r, 0.5f);
  p = __fmaf_rn(p, r, 1.0f);
  return {r, p, t};
}

// Returns 2^n: the shift removes the other bits of t. Callers compute it last, because attention
// would spill a register that holds it meanwhile.
__device__ __forceinline__ float power_of(float t) {
  return __uint_as_float((__float_as_uint(t) << 23) + (127u << 23));
}

// Returns e^x for x <= 0, with the same bits on every device, by fused multiply-adds and exact
// steps only. The result is 0 for x <= -87, and NaN for NaN. The function has no branch, because
// attention calls it often.
__device__ __forceinline__ float exp_of(float x) {
  const ReducedExp e = reduced_exp(x);
  const float polynomial = __fmaf_rn(e.p, e.r, 1.0f);
  return x <= -87.0f ? 0.0f : polynomial * power_of(e.t);
}

// Returns e^x - 1 for x <= 0 in the same way: -1 for x <= -87, and NaN for NaN.
__device__ __forceinline__ float expm1_of(float x) {
  const ReducedExp e = reduced_exp(x);
  const float power = power_of(e.t);
  return x <= -87.0f ? -1.0f : __fmaf_rn(e.p * e.r, power, power - 1.0f);
}

// Returns the sum of all lanes' v by a fixed tree; every lane gets the same bits.
__device__ __forceinline__ float warp_sum(float v) {
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, v, step);
    v = other > v ? other : v;
  }
  return v;
}

}  // namespace pb::cuda
