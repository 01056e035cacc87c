// Test only: compiles device code with g++ and runs it on the CPU, one fiber a CUDA thread.
//
// What it promises to kernels is what CUDA promises and no more: threads go on in a random order,
// shared memory begins as NaN, what cp.async copies is there when it is waited for and not before
// (until then its destination is NaN), a shuffle or an mma orders no memory. With
// -fsanitize=address every access is checked for its bounds, with -fsanitize=thread for races
// (fibers are threads to it; only __syncthreads, __syncwarp and atomics order anything).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// Of the one block that runs. The section is what is filled with NaN when a block begins; kernels
// with it must lie in an unnamed namespace (a section cannot hold templates' merged variables too).
#define __shared__ static __attribute__((section("cuda_shared"), used))
// `extern __shared__ T name[]`, which g++ cannot say.
#define DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::cuda_on_cpu::dynamic_shared())

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
using cudaStream_t = struct CUstream_st*;

struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 v) {
  const uint32_t u = uint32_t{v.bits} << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __int_as_float(int i) {
  float f;
  __builtin_memcpy(&f, &i, 4);
  return f;
}

namespace cuda_on_cpu {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Where {  // of a barrier or a warp's operation in the source
  const char* file;
  int line;
  const char* what;
};
#define CUDA_ON_CPU_HERE(what) \
  ::cuda_on_cpu::Where { __builtin_FILE(), __builtin_LINE(), what }

// How an mma adds: in f32, one product after the other, each rounded (fast); or as tensor cores do
// by the models of arXiv:2511.10909: so many exact products and the sum so far are cut to a number
// of bits below the greatest exponent, added exactly and cut to f32.
enum class MmaModel { kSequential, kAmpere /* 8, 24 bits */, kHopper /* 16, 25 bits: wgmma too */ };

struct Options {
  uint64_t seed = 0;  // of the order of threads and blocks; 0: as numbered
  MmaModel mma = MmaModel::kSequential;
};
Options& options();

struct Counters {
  uint64_t blocks, switches, mmas;
};
Counters& counters();

// -- what kernels see; runtime in cuda_on_cpu.cc, which no sanitizer sees -------------------------
const uint3& thread_idx();
unsigned lane();
extern uint3 g_block_idx;
extern dim3 g_block_dim, g_grid_dim;
void* dynamic_shared();
void sync_block(Where where);
void sync_warp(unsigned mask, Where where);
void shuffle(unsigned mask, int source_lane, const void* in, void* out, unsigned bytes, Where);
unsigned ballot(unsigned mask, bool value, Where);
// Each lane gives a row of 16 bytes and gets one number of each of the four 8x8 matrices.
void ldmatrix_x4(const void* row, unsigned (&out)[4], bool transposed, Where);
void mma_m16n8k16_bf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], Where);
// Notes a copy of the thread's; done by wait. early: where a thread's copies have been noted only.
struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes;
};
void async_note(const AsyncCopy& copy);
void async_commit();
bool async_next(unsigned groups_left, AsyncCopy& copy);  // to be done now, one by one
// wgmma: a warpgroup's products are done when waited for; until then their accumulators are NaN,
// and operands that have changed by then are an error, as is a copy of cp.async that no proxy fence
// follows.
uint64_t shared_offset(const void* p);
const void* at_shared(uint64_t offset);
void proxy_fence();
void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b, const uint64_t (&own_a)[2],
                     const uint64_t (&own_b)[2]);
void wgmma_commit();
bool wgmma_next(unsigned groups_left, uint64_t (&tiles)[2]);
void wgmma_finish(const uint64_t (&own_a)[2], const uint64_t (&own_b)[2]);
void atomic_begin(const void* address);
void atomic_end(const void* address);
[[noreturn]] void fail(const std::string& what);

void launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes,
            const std::function<void()>& kernel);

// A kernel of the program, by name: PB_KERNEL makes one.
struct Registered {
  Registered(const char* name, unsigned most_threads, size_t params_bytes,
             void (*body)(const void* params));
};

// Runs a registered kernel. params: the struct that it takes, of params_bytes. Throws Error where
// there is none of the name, the struct is of another size, or the block has too many threads.
void launch(const std::string& name, dim3 grid, dim3 block, size_t shared_bytes, const void* params,
            size_t params_bytes);

}  // namespace cuda_on_cpu

#define threadIdx (::cuda_on_cpu::thread_idx())
#define blockIdx (::cuda_on_cpu::g_block_idx)
#define blockDim (::cuda_on_cpu::g_block_dim)
#define gridDim (::cuda_on_cpu::g_grid_dim)

// The caller's line, so that threads that wait for each other at different places are found out.
// (Two arguments and not one struct, which g++ 12 would make where it is declared.)
#define CUDA_ON_CPU_CALLER const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()

inline void __syncthreads(CUDA_ON_CPU_CALLER) {
  cuda_on_cpu::sync_block({file_, line_, "__syncthreads"});
}
inline void __syncwarp(unsigned mask = 0xffffffffu, CUDA_ON_CPU_CALLER) {
  cuda_on_cpu::sync_warp(mask, {file_, line_, "__syncwarp"});
}
template <typename T>
T __shfl_sync(unsigned mask, T v, int lane, CUDA_ON_CPU_CALLER) {
  T out;
  cuda_on_cpu::shuffle(mask, lane & 31, &v, &out, sizeof(T), {file_, line_, "__shfl_sync"});
  return out;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int lane_mask, CUDA_ON_CPU_CALLER) {
  T out;
  cuda_on_cpu::shuffle(mask, static_cast<int>((cuda_on_cpu::lane() ^ unsigned(lane_mask)) & 31u),
                       &v, &out, sizeof(T), {file_, line_, "__shfl_xor_sync"});
  return out;
}
inline unsigned __ballot_sync(unsigned mask, bool p, CUDA_ON_CPU_CALLER) {
  return cuda_on_cpu::ballot(mask, p, {file_, line_, "__ballot_sync"});
}
template <typename T>
T atomicAdd(T* at, T v) {
  cuda_on_cpu::atomic_begin(at);  // fibers change at barriers only: nothing comes between
  const T old = *at;
  *at = old + v;
  cuda_on_cpu::atomic_end(at);
  return old;
}
