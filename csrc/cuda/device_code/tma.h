// Hopper's tensor memory accelerator: one thread has a whole tile copied to shared memory, and a
// barrier there (mbarrier) tells when it has come. Layouts and rules by the PTX ISA, "mbarrier" and
// "cp.async.bulk.tensor".
//
// A barrier goes from phase to phase. A phase is over when so many threads have arrived as the
// barrier was made for, and as many bytes have been copied as arriving threads have said. Phases
// are waited for by their parity: 0 for the first, 1 for the second, 0 again. Of a barrier whose
// first phase is not over, the phase of parity 1 counts as over.
//
// Arrivals and waits order memory, of the async proxy too: what has been read before an arrival may
// be overwritten after the wait.
#pragma once

#include "cuda/device_code/tensor_map.h"
#include "cuda/device_code/wgmma.h"

namespace pb::cuda {

// Makes a barrier for n_arrivals a phase. By one thread, which then calls fence_for_async_proxy();
// others may use it after a __syncthreads.
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

// The same, and the phase is over only when so many more bytes have been copied.
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
// Copies a box for the emulator, or fills it with NaN: by a thread of the kernel, so that
// sanitizers know who read and who wrote.
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

// Waits until the phase of this parity is over, and sees what came before its arrivals, and its
// copies.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, unsigned parity PB_CALLER) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  unsigned is_over = 0;
  while (is_over == 0) {  // the instruction itself waits for a time
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

// Has a tile copied from a matrix, from `column` and `row` on: of the size and in the layout that
// the map says, zeros where the matrix has nothing. Its bytes count for the barrier's phase that is
// under way. tile: on kWgmmaAlignment. By one thread.
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
  copy_box(copy, true);  // who reads too early, or still reads what was there, finds NaN
  cuda_on_cpu::mbarrier_note({barrier, *barrier}, copy);
#endif
}

// Registers of each thread of this warpgroup from here on: fewer than the kernel was compiled for
// are free for others, which wait until there are so many. A multiple of 8, by the whole warpgroup.
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

// Has a map loaded where copies find it soon. By one thread.
__device__ __forceinline__ void prefetch([[maybe_unused]] const TensorMap& map) {
#if defined(PB_HAS_WGMMA) && defined(__CUDA_ARCH__)
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

}  // namespace pb::cuda
