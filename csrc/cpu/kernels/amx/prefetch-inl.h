// Prefetches weights from memory while others are expanded and multiplied.
//
// A core that only reads keeps its fill buffers busy by itself. One that computes between its reads
// has to prefetch, and evenly: a dozen lines prefetched at once take all buffers of the first
// cache, and a line needed now waits for lines needed later. Compilers gather prefetches where they
// find room, so each of these stays where it is written.
#pragma once

#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Bytes ahead that a stream is prefetched, into the second cache and from there into the first. A
// multiple of 4096 would share the first cache's sets with what is being read.
constexpr int kFarAhead = 3584;
constexpr int kNearAhead = 768;

// Prefetches a line into the first cache, or only into the second. No access to memory moves past.
template <int kCache>
PB_INLINE void prefetch_line(const void* line) {
  __builtin_prefetch(line, 0, kCache == 1 ? 3 : 2);
  asm volatile("" ::: "memory");
}

// Prefetches what follows the next `bytes` of a stream, every line once. To be called just before
// those bytes are read.
PB_INLINE void prefetch_ahead(const void* next, int bytes = 64) {
#pragma GCC unroll 32
  for (int line = 0; line < bytes; line += 64) {
    prefetch_line<2>(static_cast<const char*>(next) + kFarAhead + line);
    prefetch_line<1>(static_cast<const char*>(next) + kNearAhead + line);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
