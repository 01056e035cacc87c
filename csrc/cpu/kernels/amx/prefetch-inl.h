// Prefetches of weights from memory while others are expanded and multiplied.
//
// A core that only reads keeps its fill buffers busy by itself. A core that computes between its
// reads has to prefetch, and evenly: a dozen prefetches at once occupy all fill buffers of the
// first-level cache, so that a line that is needed now waits for lines that are needed later.
// Compilers move prefetches together, so each of these is pinned to its position.
#pragma once

#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The distance in bytes of a stream's prefetches, into the second-level cache and from there into
// the first. At a multiple of 4096 they would compete for the same sets of the first-level cache as
// the data that is being read.
constexpr int kFarAhead = 3584;
constexpr int kNearAhead = 768;

// Prefetches a line into the first-level cache, or only into the second. No memory access moves
// across.
template <int kCache>
PB_INLINE void prefetch_line(const void* line) {
  __builtin_prefetch(line, 0, kCache == 1 ? 3 : 2);
  asm volatile("" ::: "memory");
}

// Prefetches the data after the next `bytes` of a stream, every line once. Called just before those
// bytes are read.
PB_INLINE void prefetch_ahead(const void* next, int bytes = 64) {
#pragma GCC unroll 32
  for (int line = 0; line < bytes; line += 64) {
    prefetch_line<2>(static_cast<const char*>(next) + kFarAhead + line);
    prefetch_line<1>(static_cast<const char*>(next) + kNearAhead + line);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
