// y = x W^T in bf16 on the tile unit (Intel AMX), for some packed weight tiles and some rows.
//
// One instruction, tdpbf16ps, does all sums: for 32 k's it adds up the even ones, ascending, and
// the odd ones, adds both, then adds that to the accumulator. Every output of every row count goes
// through the same instructions over whole steps of 32 k's (what pads weights and rows is zero), so
// a row's bits hang on nothing else; accumulators are parked in f32, exactly, at the borders of
// blocks of K. The instruction takes numbers below 2^-126 for zero, operands, sums and results
// alike.
#pragma once

#include "cpu/gemm_rows-inl.h"
#include "cpu/kernels.h"
#include "cpu/rows-inl.h"
#include "cpu/tiles_amx-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kAmxColumns = 2 * kWidth;  // of a weight tile: a register block is two by two tiles
constexpr int kStepK = kBf16Padding;     // k's of one tile product
constexpr int kStepNumbers = kStepK * kAmxColumns;  // of a weight tile
// A block of K of a weight tile, of at most so many steps, stays in the first cache while rows pass
// over it; the rows' loads are told not to drive it out.
constexpr int kBlockSteps = 18;
constexpr int kTileFloats = kTileRows * kWidth;  // of an accumulator tile
constexpr int kPairRows = 2 * kTileRows;         // of a register block, of two by two tiles
// A pass takes so many rows, and as much of K of them as stays in the second cache while weight
// tiles stream by.
constexpr int kPassRows = 512;
constexpr int kPassBytes = 576 << 10;
constexpr int kAmxTiles = 32;  // whose sums are parked from one part of K to the next
constexpr int kStreamedPairs =
    8;  // register blocks of rows from which on y is written past the caches
constexpr int kAmxScratch = kAmxTiles * kPassRows * kAmxColumns * static_cast<int>(sizeof(float));

static_assert(kStepK == 32 && kBf16Products);

// Cache lines that are asked for bit by bit while products are formed.
struct Ahead {
  const char* at;
  int lines;  // a step

  PB_INLINE void step() {
    for (int i = 0; i < lines; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += lines * 64;
  }
};

// Where the sums of one weight tile go.
struct TileOutput {
  float* y;  // first row of the pass, first column of the tile
  int64_t y_stride;
  const float* bias;  // of the tile's columns, or null
  int n_columns;      // that exist
  bool add;
  bool stream;  // past the caches: there is much, and all of it whole lines
};

// y (=|+=) an accumulator tile + bias, for `rows` rows from `row` and the columns from `column`.
PB_INLINE void write_tile(const TileOutput& to, const float* tile, int column, int row, int rows) {
  if (column >= to.n_columns) return;
  const bool biased = to.bias != nullptr;
  const Vec bias = biased ? load(to.bias + column) : zero();
  for (int r = 0; r < rows; ++r) {
    float* y = to.y + (row + r) * to.y_stride + column;
    Vec out = load(tile + r * kWidth);
    if (biased) out = add(out, bias);
    if (to.stream) {
      _mm512_stream_ps(y, out);
      continue;
    }
    if (to.add) out = add(load_tail(y, 0, to.n_columns - column), out);
    store_tail(y, 0, to.n_columns - column, out);
  }
}

// A block of K of one weight tile, for all rows of the pass.
struct AmxBlock {
  const uint16_t* x;  // first row, first k
  int64_t x_bytes;    // of a row
  const uint16_t* w;  // first k
  int steps;
  int rows;
  bool first;     // block of K: sums start at zero
  bool last;      // block of K: sums go to y
  float* parked;  // (rows rounded up to kTileRows, kAmxColumns), one tile after the other
  TileOutput out;
  Ahead weights;
};

// At most kTileRows rows, over all of K at once: bound by reading weights.
inline __attribute__((noinline)) void multiply_few(const AmxBlock& b) {
  configure_tiles(b.rows, b.rows);
  tile_zero<0>();
  tile_zero<1>();
  const uint16_t* x = b.x;
  const auto* w = reinterpret_cast<const char*>(b.w);
  for (int s = 0; s < b.steps; ++s) {
    constexpr int kStepBytes = kStepNumbers * 2;
#pragma GCC unroll 32
    for (int line = 0; line < kStepBytes; line += 64) {
      __builtin_prefetch(w + kFarPrefetch + line, 0, 2);
    }
    tile_load<4>(x, b.x_bytes);
    tile_load<6>(w, kAmxColumns * 4);
    tile_bf16_product<0, 4, 6>();
    tile_load<7>(w + kWidth * 4, kAmxColumns * 4);
    tile_bf16_product<1, 4, 7>();
    x += kStepK;
    w += kStepBytes;
  }
  tile_store<0>(b.parked, 64);
  tile_store<1>(b.parked + kTileFloats, 64);
  for (int t = 0; t < 2; ++t) {
    write_tile(b.out, b.parked + t * kTileFloats, t * kWidth, 0, b.rows);
  }
}

// `rows` rows from `row`, as the tiles are configured: kPairRows of them, or those that are left.
PB_INLINE void multiply_pair(AmxBlock& b, int row, int rows) {
  float* parked = b.parked + static_cast<size_t>(row) * kAmxColumns;
  const bool below = rows > kTileRows;
  if (b.first) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
  } else {
    tile_load<0>(parked, 64);
    tile_load<1>(parked + kTileFloats, 64);
    if (below) {
      tile_load<2>(parked + 2 * kTileFloats, 64);
      tile_load<3>(parked + 3 * kTileFloats, 64);
    }
  }
  const auto* x = reinterpret_cast<const char*>(b.x) + row * b.x_bytes;
  const auto* x_below = x + kTileRows * b.x_bytes;
  const auto* w = reinterpret_cast<const char*>(b.w);
  for (int s = 0; s < b.steps; ++s) {
    b.weights.step();
    tile_load<6>(w, kAmxColumns * 4);
    tile_load_streamed<4>(x, b.x_bytes);
    tile_bf16_product<0, 4, 6>();
    tile_load<7>(w + kWidth * 4, kAmxColumns * 4);
    tile_bf16_product<1, 4, 7>();
    if (below) {
      tile_load_streamed<5>(x_below, b.x_bytes);
      tile_bf16_product<2, 5, 6>();
      tile_bf16_product<3, 5, 7>();
    }
    x += kStepK * 2;
    x_below += kStepK * 2;
    w += kStepNumbers * 2;
  }
  tile_store<0>(parked, 64);
  tile_store<1>(parked + kTileFloats, 64);
  if (below) {
    tile_store<2>(parked + 2 * kTileFloats, 64);
    tile_store<3>(parked + 3 * kTileFloats, 64);
  }
  if (!b.last) return;
  for (int t = 0; t < (below ? 4 : 2); ++t) {
    const int above = t / 2 * kTileRows;
    write_tile(b.out, parked + t * kTileFloats, t % 2 * kWidth, row + above,
               rows - above < kTileRows ? rows - above : kTileRows);
  }
}

inline __attribute__((noinline)) void multiply_many(AmxBlock b) {
  int row = 0;
  if (b.rows >= kPairRows) configure_tiles(kTileRows, kTileRows);
  for (; b.rows - row >= kPairRows; row += kPairRows) multiply_pair(b, row, kPairRows);
  const int rows = b.rows - row;
  if (rows == 0) return;
  configure_tiles(rows < kTileRows ? rows : kTileRows, rows > kTileRows ? rows - kTileRows : 1);
  multiply_pair(b, row, rows);
}

// Some steps of K, for some rows, of weight tiles [tile_begin, tile_end).
struct AmxPass {
  int tile_begin, tile_end;
  int row, rows;
  int step, end_step;
};

// What to ask for while a block at `w` is multiplied. One pair of rows reads weights
// once, as fast as they come; a few pairs do best when they are left to the first of them.
PB_INLINE Ahead ahead_of(const uint16_t* w, const uint16_t* next, int pairs) {
  constexpr int kStepLines = kStepNumbers * 2 / 64;
  if (pairs == 1) return {reinterpret_cast<const char*>(w) + kFarPrefetch, kStepLines};
  if (pairs < kStreamedPairs) return {nullptr, 0};
  return {reinterpret_cast<const char*>(next), (kStepLines + pairs - 1) / pairs};
}

inline void multiply_pass(const GemmArgs& args, const AmxPass& pass, float* scratch) {
  const int steps = (args.n_in + kStepK - 1) / kStepK;
  const size_t tile_numbers = static_cast<size_t>(steps) * kStepNumbers;
  const auto* weights = static_cast<const uint16_t*>(args.weights);
  const auto* x = static_cast<const uint16_t*>(args.x) + pass.row * args.x_stride;
  float* y = args.y + static_cast<size_t>(pass.row) * args.n_out;
  const int pairs = (pass.rows + kPairRows - 1) / kPairRows;
  const int n_steps = pass.end_step - pass.step;
  const int n_blocks = pairs == 1 ? 1 : (n_steps + kBlockSteps - 1) / kBlockSteps;
  const int block_steps = (n_steps + n_blocks - 1) / n_blocks;
  const bool whole_k = n_steps == steps;
  const bool stream = pairs >= kStreamedPairs && !args.add && args.n_out % kWidth == 0 &&
                      reinterpret_cast<uintptr_t>(y) % 64 == 0;
  for (int tile = pass.tile_begin; tile < pass.tile_end; ++tile) {
    const int column = tile * kAmxColumns;
    const int place = whole_k ? 0 : tile - pass.tile_begin;
    for (int step = pass.step; step < pass.end_step; step += block_steps) {
      const int n = pass.end_step - step < block_steps ? pass.end_step - step : block_steps;
      const uint16_t* w = weights + tile * tile_numbers + static_cast<size_t>(step) * kStepNumbers;
      const uint16_t* next =
          w + (step + n == pass.end_step ? tile_numbers : 0) +
          static_cast<int64_t>(step + n == pass.end_step ? pass.step - step : n) * kStepNumbers;
      const AmxBlock block{
          x + step * kStepK,
          args.x_stride * 2,
          w,
          n,
          pass.rows,
          step == 0,
          step + n == steps,
          scratch + static_cast<size_t>(place) * kPassRows * kAmxColumns,
          {y + column, args.n_out, args.bias == nullptr ? nullptr : args.bias + column,
           args.n_out - column, args.add, stream},
          ahead_of(w, next, pairs)};
      pass.rows <= kTileRows ? multiply_few(block) : multiply_many(block);
    }
  }
}

// Rows [row_begin, row_end) of weight tiles [tile_begin, tile_end), at most kAmxTiles.
inline void amx_tiles(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                      int row_end, void* scratch) {
  const int steps = (args.n_in + kStepK - 1) / kStepK;
  const int n_passes = (row_end - row_begin + kPassRows - 1) / kPassRows;
  const int even_rows = (row_end - row_begin + n_passes - 1) / n_passes;
  const int pass_rows = (even_rows + kPairRows - 1) / kPairRows * kPairRows;
  for (int row = row_begin; row < row_end; row += pass_rows) {
    const int rows = row_end - row < pass_rows ? row_end - row : pass_rows;
    const int most = rows <= kTileRows ? steps : kPassBytes / (rows * kStepK * 2);
    const int n_parts = (steps + most - 1) / most;
    const int part_steps = (steps + n_parts - 1) / n_parts;
    for (int step = 0; step < steps; step += part_steps) {
      const int end_step = step + part_steps < steps ? step + part_steps : steps;
      multiply_pass(args, {tile_begin, tile_end, row, rows, step, end_step},
                    static_cast<float*>(scratch));
    }
  }
  release_tiles();
  _mm_sfence();  // streamed stores are ordered by nothing else
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
