// The loops over rows and blocks of K that all products share.
//
// Rows are divided into register blocks, and all register blocks are multiplied by a block of K
// before the next one, so that all but the first read the weights from a near cache. At the borders
// of blocks of K sums are parked in f32, exactly, so that the division does not change a bit.
#pragma once

#include <cstddef>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kRowChunk = 192;  // rows that are multiplied by a block of K while it is in the cache

// The bytes of parked sums, for tiles of kColumns.
template <int kColumns>
constexpr int kScratch = kRowChunk * kColumns * static_cast<int>(sizeof(float));

// The distances in bytes of prefetches in the tile, into the second-level cache and into the first.
constexpr int kFarPrefetch = 8192;
constexpr int kNearPrefetch = 2048;

PB_INLINE void prefetch(const void* w, int bytes) {
#pragma GCC unroll 4
  for (int line = 0; line < bytes; line += 64) {
    __builtin_prefetch(static_cast<const char*>(w) + kFarPrefetch + line, 0, 2);
    __builtin_prefetch(static_cast<const char*>(w) + kNearPrefetch + line, 0, 3);
  }
}

// Does the prefetch() of kBytes in kSteps steps: a dozen lines at once occupy all fill buffers, and
// a line that is needed now waits for them. Used for one row. Code that computes more between its
// reads loses more by the fixed order of instructions.
template <int kBytes, int kSteps>
PB_INLINE void prefetch_in_step(const uint8_t* w, int step) {
  constexpr int kLines = (kBytes + 63) / 64;
  constexpr int kOfStep = (kLines + kSteps - 1) / kSteps;
#pragma GCC unroll 4
  for (int line = step * kOfStep; line < (step + 1) * kOfStep; ++line) {
    if (line >= kLines) return;
    __builtin_prefetch(w + kFarPrefetch + line * 64, 0, 2);
    __builtin_prefetch(w + kNearPrefetch + line * 64, 0, 3);
    asm volatile("" ::: "memory");  // or else compilers move prefetches together
  }
}

// The lines of a step of kBytes that the second register block prefetches; the third one prefetches
// the rest.
template <int kBytes>
constexpr int kHalfLines = (kBytes + 127) / 128;

// Prefetches half of the data at `distance` from a step of kBytes, into the second-level cache.
template <int kBytes>
PB_INLINE void prefetch_half(const void* w, ptrdiff_t distance) {
#pragma GCC unroll 9
  for (int line = 0; line < kHalfLines<kBytes>; ++line) {
    __builtin_prefetch(static_cast<const char*>(w) + distance + line * 64, 0, 2);
  }
}

// Prefetches one of n_parts parts of some bytes, into the second-level cache.
PB_INLINE void prefetch_part(const uint8_t* from, int bytes, int part, int n_parts) {
  for (int line = 64 * part; line < bytes; line += 64 * n_parts) {
    __builtin_prefetch(from + line, 0, 2);
  }
}

// The source and the destination of the sums of a block of rows.
struct BlockSums {
  float* parked;  // (rows, columns): sums so far
  bool first;     // block of K: sums start at zero
  bool last;      // block of K: sums go to y
  float* y;       // first row, first column of the tile
  int64_t y_stride;
  const float* bias;  // of the tile's columns, or null
  int n_columns;      // existing columns of the tile
  bool add;
};

// Returns the sums of rows from `row` on and a tile's columns from `column` on.
PB_INLINE BlockSums sums_at(const GemmArgs& args, int row, int column, float* parked, bool first,
                            bool last) {
  return {parked,
          first,
          last,
          args.y + row * args.y_stride + column,
          args.y_stride,
          args.bias == nullptr ? nullptr : args.bias + column,
          args.n_out - column,
          args.add};
}

PB_INLINE Vec begin_sum(const BlockSums& sums, int columns, int r, int v) {
  return sums.first ? zero() : load(sums.parked + r * columns + v * kWidth);
}

PB_INLINE void end_sum(const BlockSums& sums, int columns, int r, int v, Vec sum) {
  const int c = v * kWidth;
  if (!sums.last) {
    store(sums.parked + r * columns + c, sum);
  } else if (c < sums.n_columns) {
    float* y = sums.y + r * sums.y_stride;
    if (sums.bias != nullptr) sum = add(sum, load(sums.bias + c));
    if (sums.add) sum = add(load_tail(y, c, sums.n_columns), sum);
    store_tail(y, c, sums.n_columns, sum);
  }
}

// Some rows times a block of K of a tile.
struct RowBlock {
  int row;
  int rows;
  int k;
  int k_end;
  bool fresh;  // true for the first rows that read these weights, from memory
  bool first;  // true for the first rows of the chunk that read this block of K
  bool alone;  // true if no other rows follow and the block is all of K
  // The half of the next block's weights, 0 or 1, that these rows prefetch while memory is idle;
  // -1: none.
  int half_ahead;
  BlockSums sums;

  // Returns the distance for prefetch_half from a step of kBytes; 0 means no prefetch.
  template <int kBytes>
  ptrdiff_t distance_ahead(int n_steps) const {
    if (half_ahead < 0) return 0;
    return static_cast<ptrdiff_t>(n_steps) * kBytes + half_ahead * kHalfLines<kBytes> * 64;
  }
};

// Calls block(RowBlock) for blocks of 1 <= rows <= kRows that cover all rows and all of [0, n_k),
// with K in ascending order for every row. A block of K has k_block(rows of the chunk) elements.
// parked: (kRowChunk, kColumns).
template <int kRows, int kColumns, typename KBlock, typename Block>
PB_INLINE void for_blocks(const GemmArgs& args, int tile, int row_begin, int row_end, int n_k,
                          KBlock k_block, float* parked, Block block) {
  for (int chunk = row_begin; chunk < row_end; chunk += kRowChunk) {
    const int chunk_end = chunk + kRowChunk < row_end ? chunk + kRowChunk : row_end;
    const int n_blocks = (chunk_end - chunk + kRows - 1) / kRows;
    const int step = n_blocks == 1 ? n_k : k_block(chunk_end - chunk);
    for (int k = 0; k < n_k; k += step) {
      const int k_end = k + step < n_k ? k + step : n_k;
      int row = chunk;
      for (int b = 0; b < n_blocks; ++b) {
        const int rows = (chunk_end - row + n_blocks - b - 1) / (n_blocks - b);
        float* const sums_so_far = parked + static_cast<size_t>(row - chunk) * kColumns;
        const BlockSums sums =
            sums_at(args, row, tile * kColumns, sums_so_far, k == 0, k_end == n_k);
        const bool asks = chunk == row_begin && n_blocks > 2 && (b == 1 || b == 2);
        block(RowBlock{row, rows, k, k_end, row == row_begin, b == 0, n_blocks == 1,
                       asks ? b - 1 : -1, sums});
        row += rows;
      }
    }
  }
}

// The limits of products that process tiles one by one. With many rows, neighbouring tiles are
// written at the same time.
constexpr TilesPerCall kTilesPerCall = {16, 1};

// Computes the product of some tiles by the function for one tile.
template <void (*kTile)(const GemmArgs&, int tile, int row_begin, int row_end, void* scratch)>
inline void each_tile(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                      int row_end, void* scratch) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    kTile(args, tile, row_begin, row_end, scratch);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
