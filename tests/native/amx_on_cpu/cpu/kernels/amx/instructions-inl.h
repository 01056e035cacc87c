// The instructions of AMX as functions, for CPUs that have the vectors and not the tiles:
// included in place of the file of this name in csrc (option PYBATCHER_EMULATED_TILES).
//
// As Intel's manual has them (Software Developer's Manual, volume 2, TDPBF16PS and others), with
// what hardware refuses as a trap. Tiles that are configured hold garbage until they are loaded.
#pragma once

#include <cstdint>

#include "cpu/kernels/amx/tile_shapes.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

struct Tiles {
  static constexpr int kRowBytes = 64;

  TileShapes shapes;
  bool configured = false;
  uint8_t bytes[8][16][kRowBytes];

  int rows(int tile) const { return shapes.rows[tile]; }
  int row_bytes(int tile) const { return shapes.row_bytes[tile]; }
  void require(bool possible) const {
    if (!configured || !possible) __builtin_trap();
  }

  void configure(const TileShapes& to) {
    constexpr int kGarbage = 0x7f;  // bf16 and f32 of 3e38
    configured = true;
    for (int t = 0; t < 8; ++t) require(to.rows[t] <= 16 && to.row_bytes[t] <= kRowBytes);
    shapes = to;
    __builtin_memset(bytes, kGarbage, sizeof(bytes));
  }

  void zero(int tile) { __builtin_memset(bytes[tile], 0, sizeof(bytes[tile])); }

  void load(int tile, const void* from, int64_t stride) {
    require(rows(tile) > 0);
    zero(tile);
    for (int r = 0; r < rows(tile); ++r) {
      __builtin_memcpy(bytes[tile][r], static_cast<const char*>(from) + r * stride,
                       static_cast<size_t>(row_bytes(tile)));
    }
  }

  void save(int tile, void* to, int64_t stride) const {
    require(rows(tile) > 0);
    for (int r = 0; r < rows(tile); ++r) {
      __builtin_memcpy(static_cast<char*>(to) + r * stride, bytes[tile][r],
                       static_cast<size_t>(row_bytes(tile)));
    }
  }

  // Calls add(sum, x, w): for each sum of 32 bits those of the same size of its row and column.
  template <typename Number, typename Add>
  void product(int sums, int x, int w, Add add) {
    const int n_pairs = row_bytes(x) / 4;
    require(rows(sums) > 0 && rows(x) == rows(sums) && rows(w) == n_pairs &&
            row_bytes(w) == row_bytes(sums));
    for (int r = 0; r < rows(sums); ++r) {
      for (int at = 0; at < row_bytes(sums); at += 4) {
        Number sum;
        __builtin_memcpy(&sum, bytes[sums][r] + at, sizeof(sum));
        sum = add(sum, n_pairs, bytes[x][r], bytes[w][0] + at);
        __builtin_memcpy(bytes[sums][r] + at, &sum, sizeof(sum));
      }
    }
  }
};
thread_local Tiles tiles;

// Numbers below 2^-126 count as zero.
PB_INLINE float flushed(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}
PB_INLINE float bf16_at(const uint8_t* p) {
  uint16_t half;
  __builtin_memcpy(&half, p, sizeof(half));
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return flushed(x);
}

template <int kTile>
PB_INLINE void tile_load(const void* rows, int64_t stride_bytes) {
  tiles.load(kTile, rows, stride_bytes);
}
template <int kTile>
PB_INLINE void tile_load_streamed(const void* rows, int64_t stride_bytes) {
  tiles.load(kTile, rows, stride_bytes);
}
template <int kTile>
PB_INLINE void tile_store(void* rows, int64_t stride_bytes) {
  tiles.save(kTile, rows, stride_bytes);
}
template <int kTile>
PB_INLINE void tile_zero() {
  tiles.require(tiles.rows(kTile) > 0);
  tiles.zero(kTile);
}

// The even ones of all pairs, one after the other, and the odd ones; then both; then the sum.
template <int kSums, int kX, int kW>
inline void tile_bf16_product() {
  tiles.product<float>(kSums, kX, kW, [](float sum, int n, const uint8_t* x, const uint8_t* w) {
    float even = 0.0f, odd = 0.0f;
    for (int i = 0; i < n; ++i, x += 4, w += Tiles::kRowBytes) {
      even = flushed(__builtin_fmaf(bf16_at(x), bf16_at(w), even));
      odd = flushed(__builtin_fmaf(bf16_at(x + 2), bf16_at(w + 2), odd));
    }
    return flushed(flushed(sum) + flushed(even + odd));
  });
}

template <int kSums, int kX, int kW>
inline void tile_byte_product() {
  tiles.product<int32_t>(kSums, kX, kW, [](int32_t sum, int n, const uint8_t* x, const uint8_t* w) {
    for (int i = 0; i < n; ++i, x += 4, w += Tiles::kRowBytes) {
      for (int b = 0; b < 4; ++b) sum += static_cast<int8_t>(x[b]) * static_cast<int8_t>(w[b]);
    }
    return sum;
  });
}

PB_INLINE void configure_tiles(const TileShapes& shapes) { tiles.configure(shapes); }
PB_INLINE void release_tiles() { tiles.configured = false; }

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
