// Up to 64 rows times int4 weights on AMX, with weights as the first operand of a product and rows
// as the second: sums are (columns, rows).
//
// The weights come from memory and are expanded first, which is the bottleneck, and lines of one
// column are expanded faster than pairs of k (Int4Lines). The products and the order of their sums
// are those of amx/gemm-inl.h, so that a row's bits do not depend on the choice of method.
#pragma once

#include <cstdint>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/amx/expand-inl.h"
#include "cpu/kernels/amx/prefetch-inl.h"
#include "cpu/kernels/amx/sums-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The distance in bytes of prefetches of a stream of weights into the first-level cache. A step is
// so short that additional prefetches into the second-level cache would slow it down.
constexpr int kLinesAhead = 3072;
constexpr int kSmallM = 64;             // greatest number of rows for which this method is faster
constexpr int kPairsBytes = 576 << 10;  // bytes of rows that stay in the second-level cache
constexpr int kTurns = 4;               // steps of expanded weights, used in turn

// Transposes 16 x 16 numbers of 32 bits: the input has `rows` rows, and the output has lines of
// `rows` numbers that are `to_bytes` apart.
inline __attribute__((noinline)) void transpose(const void* from, int64_t from_bytes, int rows,
                                                void* to, int to_bytes) {
  const __mmask16 lanes = first_lanes(rows);
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    a[r] = r < rows ? _mm512_loadu_si512(static_cast<const char*>(from) + r * from_bytes)
                    : _mm512_setzero_si512();
  }
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {  // a[r + i]: column 4 lane + i of rows r to r + 3
    a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i low_even = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);  // lanes 0, 2
    const __m512i low_odd = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    const __m512i high_even = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    const auto put = [&](int line, __m512i numbers) {
      _mm512_mask_storeu_epi32(static_cast<char*>(to) + line * to_bytes, lanes, numbers);
    };
    put(i, _mm512_shuffle_i32x4(low_even, high_even, 0x88));
    put(i + 4, _mm512_shuffle_i32x4(low_odd, high_odd, 0x88));
    put(i + 8, _mm512_shuffle_i32x4(low_even, high_even, 0xdd));
    put(i + 12, _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd));
  }
}

// Rows of x in pairs of k, (steps, blocks of 16 rows, 16, rows of a block, 2).
struct RowPairs {
  const char* data;
  int blocks;
  int line;  // bytes of one pair of k of a block's rows

  int step() const { return blocks * kTileRows * line; }
};

// Interleaves some steps of at most kPairRows rows at x.
inline RowPairs pair_rows(const uint16_t* x, int64_t x_stride, int rows, int steps, char* to) {
  // A single row already consists of pairs.
  if (rows == 1) return {reinterpret_cast<const char*>(x), 1, 4};
  RowPairs pairs{to, rows > kTileRows ? 2 : 1, rows < kTileRows ? rows * 4 : 64};
  for (int s = 0; s < steps; ++s) {
    for (int row = 0; row < rows; row += kTileRows) {
      transpose(x + row * x_stride + s * kStepK, x_stride * 2,
                rows - row < kTileRows ? rows - row : kTileRows, to, pairs.line);
      to += kTileRows * pairs.line;
    }
  }
  return pairs;
}

// The scratch consists of parked sums, rows in pairs, and the steps of expanded weights of two
// tiles.
template <int kMostTiles>
constexpr int kSmallMParkedFloats = kMostTiles * kSmallM * kAmxColumns;
template <int kMostTiles>
constexpr int kSmallMScratch =
    kSmallMParkedFloats<kMostTiles> * 4 + kPairsBytes + 2 * kTurns * kStepNumbers * 2;

// Some steps of K of one weight tile, or of two neighbours, with one or two blocks of 16 rows.
struct SmallMBlock {
  const uint8_t* w;    // first step
  int64_t tile_bytes;  // to the next weight tile
  RowPairs x;          // from the first step
  int steps;
  bool first;     // block of K: sums start at zero
  bool last;      // block of K: sums go to y
  float* parked;  // four accumulator tiles
  uint16_t* expanded;
};

// Configures the tiles: 0 and 1 are the sums of the first weight tile and block of rows, 2 and 3
// those of the second tile or block, 4 and 5 are weights, 6 and 7 are rows.
PB_INLINE void configure_small_m(int rows) {
  const int above = rows < kTileRows ? rows : kTileRows;
  const int below = rows > kTileRows ? rows - kTileRows : above;
  const auto a = static_cast<uint16_t>(above * 4), b = static_cast<uint16_t>(below * 4);
  configure_tiles(TileShapes{.row_bytes = {a, a, b, b, 64, 64, a, b},
                             .rows = {16, 16, 16, 16, 16, 16, 16, 16}});
}

template <int kTiles, int kBlocks>
inline __attribute__((noinline)) void multiply_small_m_block(const SmallMBlock& b) {
  static_assert(kTiles * kBlocks <= 2);
  constexpr bool kFour = kTiles * kBlocks == 2;  // true for four accumulators, false for two
  alignas(64) float scales[kTiles][2][kAmxColumns];
  const auto expand = [&](int tile, int step) {
    const uint8_t* from = b.w + tile * b.tile_bytes + step * int64_t{Int4Expansion::kStepBytes};
    if (step + 1 < b.steps) {
      Int4Lines::load_scales(from + Int4Expansion::kStepBytes, scales[tile][(step + 1) % 2]);
    }
    // Two tiles are two streams that are read in turn. At the end of its tile, a stream prefetches
    // the data after the other stream's tile.
    const bool ends = kTiles == 2 && from + kLinesAhead >= b.w + (tile + 1) * b.tile_bytes;
    const uint8_t* ahead = from + kLinesAhead + (ends ? b.tile_bytes : 0);
    prefetch_line<1>(ahead);
    uint16_t* to = b.expanded + (tile * kTurns + step % kTurns) * kStepNumbers;
#pragma GCC unroll 8
    for (int unit = 0; unit < Int4Lines::kUnits; ++unit) {
      prefetch_line<1>(ahead + (unit + 1) * 64);
      Int4Lines::expand(from, unit, scales[tile][step % 2], to);
    }
  };
  begin_tiles(b.parked, b.first, kFour);
  for (int tile = 0; tile < kTiles; ++tile) {
    Int4Lines::load_scales(b.w + tile * b.tile_bytes, scales[tile][0]);
    expand(tile, 0);
  }
  const char* x = b.x.data;
  for (int s = 0; s < b.steps; ++s, x += b.x.step()) {
    const uint16_t* w = b.expanded + s % kTurns * kStepNumbers;
    if (s + 1 < b.steps) expand(0, s + 1);
    tile_load<6>(x, b.x.line);
    tile_load<4>(w, 64);
    tile_bf16_product<0, 4, 6>();
    tile_load<5>(w + kStepNumbers / 2, 64);
    tile_bf16_product<1, 5, 6>();
    if constexpr (kBlocks == 2) {
      tile_load<7>(x + kTileRows * 64, b.x.line);
      tile_bf16_product<2, 4, 7>();
      tile_bf16_product<3, 5, 7>();
    }
    if constexpr (kTiles == 2) {
      w += kTurns * kStepNumbers;
      if (s + 1 < b.steps) expand(1, s + 1);
      tile_load<4>(w, 64);
      tile_bf16_product<2, 4, 6>();
      tile_load<5>(w + kStepNumbers / 2, 64);
      tile_bf16_product<3, 5, 6>();
    }
  }
  park_tiles(b.parked, kFour);
}

// y (=|+=) the parked sums of some neighbouring weight tiles, or of one tile and two blocks of
// rows.
inline void write_small_m(const GemmArgs& args, int row_begin, int rows, int tile, int tiles,
                          float* parked) {
  for (int i = 0; i < tiles; ++i) {
    const TileOutput to = output_of(args, row_begin, tile + i, false);
    for (int row = 0; row < rows; row += kTileRows) {
      const int n = rows - row < kTileRows ? rows - row : kTileRows;
      for (int half = 0; half < 2; ++half, parked += kTileFloats) {
        transpose(parked, 64, kTileRows, parked, 64);
        write_tile(to, parked, half * kWidth, row, n);
      }
    }
  }
}

PB_INLINE void multiply_small_m_block(const SmallMBlock& b, int tiles) {
  if (b.x.blocks == 2) {
    multiply_small_m_block<1, 2>(b);
  } else if (tiles == 2) {
    multiply_small_m_block<2, 1>(b);
  } else {
    multiply_small_m_block<1, 1>(b);
  }
}

// Multiplies rows [row_begin, row_end), at most kSmallM, by weight tiles [tile_begin, tile_end), at
// most kMostTiles. More than kPairRows rows are multiplied block after block, and each block
// expands the tile again, which comes from memory only once.
template <int kMostTiles>
inline void multiply_small_m(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                             int row_end, float* parked) {
  const int steps = (args.n_in + kStepK - 1) / kStepK;
  const int rows = row_end - row_begin;
  const int even_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
  const auto* weights = static_cast<const uint8_t*>(args.weights);
  const auto* x = static_cast<const uint16_t*>(args.x) + row_begin * args.x_stride;
  auto* pairs = reinterpret_cast<char*>(parked + kSmallMParkedFloats<kMostTiles>);
  const int most = kPairsBytes / (even_rows * 64);
  const int n_parts = (steps + most - 1) / most;
  const int part_steps = (steps + n_parts - 1) / n_parts;
  SmallMBlock b;
  b.tile_bytes = int64_t{steps} * Int4Expansion::kStepBytes;
  b.expanded = reinterpret_cast<uint16_t*>(pairs + kPairsBytes);
  for (int step = 0; step < steps; step += part_steps) {
    b.steps = steps - step < part_steps ? steps - step : part_steps;
    b.first = step == 0;
    b.last = step + b.steps == steps;
    const auto rows_at = [&](int row) { return rows - row < kPairRows ? rows - row : kPairRows; };
    RowPairs x_at[kSmallM / kPairRows];
    for (int row = 0; row < rows; row += kPairRows) {
      x_at[row / kPairRows] =
          pair_rows(x + row * args.x_stride + step * kStepK, args.x_stride, rows_at(row), b.steps,
                    pairs + static_cast<int64_t>(row) * b.steps * 64);
    }
    configure_small_m(rows_at(0));
    for (int tile = tile_begin; tile < tile_end;) {
      const int tiles = rows <= kTileRows && tile + 1 < tile_end ? 2 : 1;
      b.w = weights + tile * b.tile_bytes + step * int64_t{Int4Expansion::kStepBytes};
      for (int row = 0; row < rows; row += kPairRows) {
        if (rows > kPairRows) configure_small_m(rows_at(row));
        b.x = x_at[row / kPairRows];
        b.parked = parked + ((tile - tile_begin) * even_rows + row) * kAmxColumns;
        multiply_small_m_block(b, tiles);
        if (b.last) write_small_m(args, row_begin + row, rows_at(row), tile, tiles, b.parked);
      }
      tile += tiles;
    }
  }
  release_tiles();
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
