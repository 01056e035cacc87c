// CUDA's variables, barriers, warp operations and atomics for g++.
#pragma once

#include "emulator.h"

#define threadIdx (::cuda_on_cpu::thread_idx())
#define blockIdx (::cuda_on_cpu::g_block_idx)
#define blockDim (::cuda_on_cpu::g_block_dim)
#define gridDim (::cuda_on_cpu::g_grid_dim)

// The caller's line, so that threads that wait for each other at different places are found out.
// Two arguments and not one struct, whose line would be the declaration's (g++ 12).
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
  const int from = (static_cast<int>(cuda_on_cpu::lane()) ^ lane_mask) & 31;
  cuda_on_cpu::shuffle(mask, from, &v, &out, sizeof(T), {file_, line_, "__shfl_xor_sync"});
  return out;
}
// Lanes below `delta` keep their own.
template <typename T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, CUDA_ON_CPU_CALLER) {
  T out;
  const unsigned own = cuda_on_cpu::lane();
  const int from = static_cast<int>(own >= delta ? own - delta : own);
  cuda_on_cpu::shuffle(mask, from, &v, &out, sizeof(T), {file_, line_, "__shfl_up_sync"});
  return out;
}
// The last `delta` lanes keep their own.
template <typename T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, CUDA_ON_CPU_CALLER) {
  T out;
  const unsigned own = cuda_on_cpu::lane();
  const int from = static_cast<int>(own + delta < 32 ? own + delta : own);
  cuda_on_cpu::shuffle(mask, from, &v, &out, sizeof(T), {file_, line_, "__shfl_down_sync"});
  return out;
}

inline unsigned __ballot_sync(unsigned mask, bool p, CUDA_ON_CPU_CALLER) {
  return cuda_on_cpu::ballot(mask, p, {file_, line_, "__ballot_sync"});
}
inline int __any_sync(unsigned mask, bool p, CUDA_ON_CPU_CALLER) {
  return cuda_on_cpu::ballot(mask, p, {file_, line_, "__any_sync"}) != 0;
}
inline int __all_sync(unsigned mask, bool p, CUDA_ON_CPU_CALLER) {
  return cuda_on_cpu::ballot(mask, p, {file_, line_, "__all_sync"}) == mask;
}

// Integers only: the order of float additions would show in the result. Relaxed, as CUDA's are: the
// race detector takes two of them for no race, and one for no order of anything else.
namespace cuda_on_cpu {

template <typename T, typename Change>
T change_atomically(T* at, Change change) {
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  T changed = change(old);
  while (
      !__atomic_compare_exchange_n(at, &old, changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    changed = change(old);
  }
  return old;
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU_ATOMICS(T)                                                           \
  inline T atomicAdd(T* at, T v) { return __atomic_fetch_add(at, v, __ATOMIC_RELAXED); } \
  inline T atomicMax(T* at, T v) {                                                       \
    return cuda_on_cpu::change_atomically(at, [v](T old) { return old > v ? old : v; }); \
  }                                                                                      \
  inline T atomicMin(T* at, T v) {                                                       \
    return cuda_on_cpu::change_atomically(at, [v](T old) { return old < v ? old : v; }); \
  }
CUDA_ON_CPU_ATOMICS(int)
CUDA_ON_CPU_ATOMICS(unsigned)
CUDA_ON_CPU_ATOMICS(unsigned long long)
#undef CUDA_ON_CPU_ATOMICS
float atomicAdd(float* at, float v) = delete;
