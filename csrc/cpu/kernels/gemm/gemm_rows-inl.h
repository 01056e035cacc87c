// How the rows of a product pass over a weight tile: what all products share.
//
// Rows go in register blocks, blocks of rows over blocks of K, so that weights are read from a near
// cache by all but the first. At the borders of K sums are parked in f32, exactly: no cut changes a
// bit.
#pragma once

#include <cstddef>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kRowChunk = 192;  // rows that pass over a block of K while it is hot

// Bytes of the sums that are parked, for tiles of kColumns.
template <int kColumns>
constexpr int kScratch = kRowChunk * kColumns * static_cast<int>(sizeof(float));

// Bytes ahead in the tile that are asked for, into the second cache and into the first.
constexpr int kFarPrefetch = 8192;
constexpr int kNearPrefetch = 2048;

PB_INLINE void prefetch(const void* w, int bytes) {
#pragma GCC unroll 4
  for (int line = 0; line < bytes; line += 64) {
    __builtin_prefetch(static_cast<const char*>(w) + kFarPrefetch + line, 0, 2);
    __builtin_prefetch(static_cast<const char*>(w) + kNearPrefetch + line, 0, 3);
  }
}

// prefetch() of kBytes, a part in each of kSteps steps: a dozen lines at once take all fill
// buffers, and a line that is needed now waits for them. For one row; what computes more between
// its reads loses more by the order that this asks of the compiler.
template <int kBytes, int kSteps>
PB_INLINE void prefetch_in_step(const uint8_t* w, int step) {
  constexpr int kLines = (kBytes + 63) / 64;
  constexpr int kOfStep = (kLines + kSteps - 1) / kSteps;
#pragma GCC unroll 4
  for (int line = step * kOfStep; line < (step + 1) * kOfStep; ++line) {
    if (line >= kLines) return;
    __builtin_prefetch(w + kFarPrefetch + line * 64, 0, 2);
    __builtin_prefetch(w + kNearPrefetch + line * 64, 0, 3);
    asm volatile("" ::: "memory");  // compilers gather prefetches otherwise
  }
}

// Of a step of kBytes: the lines that the second rows to pass ask for, and the others the third.
template <int kBytes>
constexpr int kHalfLines = (kBytes + 127) / 128;

// Asks for half of what lies `distance` behind a step of kBytes, into the second cache.
template <int kBytes>
PB_INLINE void prefetch_half(const void* w, ptrdiff_t distance) {
#pragma GCC unroll 9
  for (int line = 0; line < kHalfLines<kBytes>; ++line) {
    __builtin_prefetch(static_cast<const char*>(w) + distance + line * 64, 0, 2);
  }
}

// Asks for one part of n_parts of some bytes, into the second cache.
PB_INLINE void prefetch_part(const uint8_t* from, int bytes, int part, int n_parts) {
  for (int line = 64 * part; line < bytes; line += 64 * n_parts) {
    __builtin_prefetch(from + line, 0, 2);
  }
}

// Where the sums of a block of rows come from and go to.
struct BlockSums {
  float* parked;  // (rows, columns): sums so far
  bool first;     // block of K: sums start at zero
  bool last;      // block of K: sums go to y
  float* y;       // first row, first column of the tile
  int64_t y_stride;
  const float* bias;  // of the tile's columns, or null
  int n_columns;      // of the tile that exist
  bool add;
};

// Of rows from `row` on and a tile's columns from `column` on.
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

// Some rows over a block of K of a tile.
struct RowBlock {
  int row;
  int rows;
  int k;
  int k_end;
  bool fresh;  // the first rows that pass over these weights, which come from memory
  bool first;  // of the chunk to pass over this block of K
  bool alone;  // and the last: the block is all of K
  // The half of the next block's weights that these rows ask for, while memory has nothing to do: 0
  // or 1; -1: none.
  int half_ahead;
  BlockSums sums;

  // How far behind a step of kBytes lies what prefetch_half is to ask for; 0: nothing is.
  template <int kBytes>
  ptrdiff_t distance_ahead(int n_steps) const {
    if (half_ahead < 0) return 0;
    return static_cast<ptrdiff_t>(n_steps) * kBytes + half_ahead * kHalfLines<kBytes> * 64;
  }
};

// Calls block(RowBlock) for blocks of 1 <= rows <= kRows that cover the rows and all of [0, n_k), K
// in ascending order for every row, where one block of K is long k_block(rows of the chunk).
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

// Of products that take tiles one by one. Of many rows, neighbouring tiles are written at one time.
constexpr TilesPerCall kTilesPerCall = {16, 1};

// The product of some tiles, by that of one.
template <void (*kTile)(const GemmArgs&, int tile, int row_begin, int row_end, void* scratch)>
inline void each_tile(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                      int row_end, void* scratch) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    kTile(args, tile, row_begin, row_end, scratch);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
