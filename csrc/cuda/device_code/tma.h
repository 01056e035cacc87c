// Hopper's tensor memory accelerator: one thread starts the copy of a whole tile to shared memory,
// and a barrier there (mbarrier) signals its completion. The layouts and rules are in the PTX ISA,
// "mbarrier" and "cp.async.bulk.tensor".
//
// A barrier goes through phases. A phase is complete when the number of threads that the barrier
// was initialised with have arrived, and the number of bytes that arriving threads announced have
// been copied. A wait names the parity of a phase: 0 for the first, 1 for the second, 0 again.
// Before a barrier's first phase is complete, a phase of parity 1 counts as complete.
//
// Arrivals and waits order memory, also for the async proxy: data that was read before an arrival
// may be overwritten after the wait.
#pragma once

#include "cuda/device_code/tensor_map.h"
#include "cuda/device_code/wgmma.h"

namespace pb::cuda {

// Initialises a barrier for n_arrivals per phase. One thread calls this, and then
// fence_for_async_proxy(); other threads may use the barrier after a __syncthreads.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, unsigned n_arrivals) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(n_arrivals)
               : "memory");
#elif !defined(__CUDACC__)
  *barrier = cuda_on_cpu::mbarrier_init(barrier, n_arrivals);
#endif
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::mbarrier_arrive({barrier, *barrier}, 0);
#endif
}

// Arrives, and adds `bytes` to the bytes that have to be copied before the phase is complete.
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t* barrier, unsigned bytes) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
#elif !defined(__CUDACC__)
  cuda_on_cpu::mbarrier_arrive({barrier, *barrier}, bytes);
#endif
}

#ifndef __CUDACC__
// Copies a box for the emulator, or fills it with NaN. A thread of the kernel does it, so that
// sanitizers attribute the accesses.
inline void copy_box(const cuda_on_cpu::BulkCopy& copy, bool as_nan) {
  for (unsigned row = 0; row < copy.n_rows(); ++row) {
    for (unsigned byte = 0; byte < copy.row_bytes(); byte += 16) {
      uint64_t words[2] = {~uint64_t{0}, ~uint64_t{0}};
      if (!as_nan) {
        const cuda_on_cpu::BulkSource from = copy.source(row, byte);
        words[0] = words[1] = 0;
        if (from.bytes == 16) {
          __builtin_memcpy(words, from.at, 16);
        } else {
          for (unsigned i = 0; i < from.bytes; ++i) {
            reinterpret_cast<unsigned char*>(words)[i] = from.at[i];
          }
        }
      }
      __builtin_memcpy(copy.target(row, byte), words, 16);
    }
  }
}
#endif

// Waits until the phase of this parity is complete. The thread then sees the memory before its
// arrivals, and its copies.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, unsigned parity PB_CALLER) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  unsigned is_over = 0;
  while (is_over == 0) {  // the instruction itself waits for a limited time
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(is_over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  }
#elif !defined(__CUDACC__)
  const cuda_on_cpu::MbarrierWord word{barrier, *barrier};
  cuda_on_cpu::BulkCopy copy;
  while (!cuda_on_cpu::mbarrier_wait(word, parity, copy, {file_, line_, "mbarrier.try_wait"})) {
    copy_box(copy, false);
    cuda_on_cpu::mbarrier_copied(word, copy);
  }
#endif
}

// Starts the copy of a tile of a matrix from `column` and `row` on. The map determines the tile's
// size and layout; parts outside the matrix become zero. The tile's bytes count for the barrier's
// current phase. `tile` is aligned to kWgmmaAlignment. One thread calls this.
__device__ __forceinline__ void tma_copy(void* tile, const TensorMap& map, int column, int row,
                                         uint64_t* barrier) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(shared_address(tile)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
#elif !defined(__CUDACC__)
  const cuda_on_cpu::BulkCopy copy(tile, map.opaque, column, row);
  copy_box(copy, true);  // a read that is too early, or of the overwritten data, gets NaN
  cuda_on_cpu::mbarrier_note({barrier, *barrier}, copy);
#endif
}

// Sets the number of registers of each thread of this warpgroup, a multiple of 8. A smaller number
// than at compile time frees registers for other warpgroups, which wait until there are enough. The
// whole warpgroup calls this.
template <int kRegisters, bool kFewer>
__device__ __forceinline__ void set_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  if constexpr (kFewer) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
#endif
}

// Prefetches a map for later copies. One thread calls this.
__device__ __forceinline__ void prefetch([[maybe_unused]] const TensorMap& map) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

}  // namespace pb::cuda
