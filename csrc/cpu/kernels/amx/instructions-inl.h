// The instructions of AMX. They are inline assembly, because the intrinsics of some compilers do
// not declare that they read memory.
#pragma once

#include <cstdint>

#include "cpu/kernels/amx/tile_shapes.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

template <int kTile>
PB_INLINE void tile_load(const void* rows, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride_bytes), "i"(kTile)
               : "memory");
}

// Loads a tile of data that is not read again soon.
template <int kTile>
PB_INLINE void tile_load_streamed(const void* rows, int64_t stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride_bytes), "i"(kTile)
               : "memory");
}

template <int kTile>
PB_INLINE void tile_store(void* rows, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride_bytes), "i"(kTile)
               : "memory");
}

template <int kTile>
PB_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

// sums += x w, with x (rows, 32), w (16, columns, 2) and f32 sums (rows, columns).
template <int kSums, int kX, int kW>
PB_INLINE void tile_bf16_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
}

// sums += x w, with x (rows, 4 n) and w (n, columns, 4) of signed bytes, and sums (rows, columns)
// of whole numbers.
template <int kSums, int kX, int kW>
PB_INLINE void tile_byte_product() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kW));
}

PB_INLINE void configure_tiles(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
}

// Releases the tiles. A thread with live tiles is switched more slowly and sleeps less deeply.
PB_INLINE void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
