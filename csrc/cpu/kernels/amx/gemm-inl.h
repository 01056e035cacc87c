// y = x W^T in bf16 on AMX, for some packed weight tiles and some rows. Quantised and compressed
// weights are expanded to bf16 first.
//
// A single instruction, tdpbf16ps, computes all sums: for 32 numbers of k it adds the products of
// even numbers, ascending, and those of odd numbers, adds both sums, and then adds the result to
// the accumulator. Every output, for any number of rows, uses the same instructions over whole
// steps of 32 numbers of k (the padding of weights and rows is zero), so that a row's bits depend
// on nothing else; accumulators are parked in f32, exactly, at the borders of blocks of K. The
// instruction takes numbers below 2^-126 for zero, in operands, sums and results.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/amx/expand-inl.h"
#include "cpu/kernels/amx/gemm_small_m-inl.h"
#include "cpu/kernels/amx/prefetch-inl.h"
#include "cpu/kernels/amx/sums-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The most steps of a block of K of a weight tile, which stays in the first-level cache while rows
// are multiplied by it. Loads of rows are non-temporal, so that they do not evict it.
constexpr int kBlockSteps = 18;
// The most rows of a pass, and the bytes of their part of K, which stays in the second-level cache
// while weight tiles stream through it.
constexpr int kPassRows = 512;
constexpr int kPassBytes = 576 << 10;
constexpr int kAmxTiles = 16;  // tiles whose sums are parked between parts of K
constexpr int kManyPairs = 8;  // register blocks of rows that count as many
// The bytes of y's rows from which on y bypasses the caches; a smaller y is still in them when it
// is read.
constexpr int64_t kStreamedBytes = 24 << 20;
constexpr int kParkedFloats = kAmxTiles * kPassRows * kAmxColumns;
constexpr int kAmxScratch = kParkedFloats * 4 + kBlockSteps * kStepNumbers * 2;

static_assert(kStepK == 32 && kBf16Padding == kStepK && kBf16Products);

// The rows of a block of K of one weight tile.
struct AmxBlock {
  const uint16_t* x;  // first row, first k
  int64_t x_bytes;    // bytes between rows
  int steps;
  int rows;
  bool first;     // block of K: sums start at zero
  bool last;      // block of K: sums go to y
  float* parked;  // (rows rounded up to kTileRows, kAmxColumns), one tile after the other
  TileOutput out;
};

PB_INLINE void end_tiles(const AmxBlock& b, float* parked, int row, int rows) {
  const bool below = rows > kTileRows;
  park_tiles(parked, below);
  if (!b.last) return;
  for (int t = 0; t < (below ? 4 : 2); ++t) {
    const int above = t / 2 * kTileRows;
    write_tile(b.out, parked + t * kTileFloats, t % 2 * kWidth, row + above,
               rows - above < kTileRows ? rows - above : kTileRows);
  }
}

// Adds the products of a step of the rows at x (and of those below) by the same step of the weights
// to the sums.
PB_INLINE void multiply_step(const char* x, int64_t x_bytes, bool below, const uint16_t* w) {
  tile_load<6>(w, kAmxColumns * 4);
  tile_load_streamed<4>(x, x_bytes);
  tile_bf16_product<0, 4, 6>();
  tile_load<7>(w + 2 * kWidth, kAmxColumns * 4);
  tile_bf16_product<1, 4, 7>();
  if (!below) return;
  tile_load_streamed<5>(x + kTileRows * x_bytes, x_bytes);
  tile_bf16_product<2, 5, 6>();
  tile_bf16_product<3, 5, 7>();
}

// Expands a step and advances to the next one. With kFromMemory it prefetches the steps after it.
template <typename Weights, bool kFromMemory>
PB_INLINE void expand_step(typename Weights::Cursor& at, uint16_t* to) {
  constexpr int kScaleBytes = Weights::kStepBytes - Weights::kUnits * Weights::kUnitBytes;
  const uint8_t* step = at.from;
  if constexpr (kFromMemory) prefetch_ahead(step, kScaleBytes);
  const typename Weights::Scales scales[2] = {Weights::scales(at, 0), Weights::scales(at, 1)};
#pragma GCC unroll 16
  for (int unit = 0; unit < Weights::kUnits; ++unit) {
    if constexpr (kFromMemory) {
      prefetch_ahead(step + kScaleBytes + unit * Weights::kUnitBytes, Weights::kUnitBytes);
    }
    Weights::expand(step, unit, scales[unit % 2], to);
  }
  Weights::finish(at, to);
}

// Multiplies at most kPairRows rows: weights are used as they arrive from memory, which is the
// bottleneck. The next step is expanded while the previous one is multiplied.
template <typename Weights>
inline __attribute__((noinline)) void multiply_once(const AmxBlock& b, typename Weights::Cursor at,
                                                    uint16_t* expanded) {
  constexpr int kSteps = 4;  // steps of `expanded`, used in turn
  const bool below = b.rows > kTileRows;
  configure_tiles(below ? kTileRows : b.rows, below ? b.rows - kTileRows : 1);
  begin_tiles(b.parked, b.first, below);
  const auto* x = reinterpret_cast<const char*>(b.x);
  if constexpr (Weights::kUnits > 0) expand_step<Weights, true>(at, expanded);
  for (int s = 0; s < b.steps; ++s) {
    if constexpr (Weights::kUnits > 0) {
      if (s + 1 < b.steps) {
        expand_step<Weights, true>(at, expanded + (s + 1) % kSteps * kStepNumbers);
      }
      multiply_step(x, b.x_bytes, below, expanded + s % kSteps * kStepNumbers);
    } else {
      prefetch_ahead(at.from, Weights::kStepBytes);
      multiply_step(x, b.x_bytes, below, reinterpret_cast<const uint16_t*>(at.from));
      at.from += Weights::kStepBytes;
    }
    x += kStepK * 2;
  }
  end_tiles(b, b.parked, 0, b.rows);
}

// Prefetches of the weights of the next block of K while one is multiplied, a few lines per step.
struct Ahead {
  const uint8_t* from;
  int n;  // cache lines
  int per_step;
  int at = 0;

  Ahead(const uint8_t* w, int lines, int turns)
      : from(w), n(lines), per_step((lines + turns - 1) / turns) {}

  PB_INLINE void step() {
    const int end = at + per_step < n ? at + per_step : n;
    for (; at < end; ++at) __builtin_prefetch(from + at * 64, 0, 2);
  }
};

// Prefetches the parked sums of the next register block, in 16 steps.
PB_INLINE void prefetch_parked(const float* next, int step) {
  constexpr int kFloats = kPairRows * kAmxColumns / 16;
  if (step >= 16) return;
#pragma GCC unroll 4
  for (int i = 0; i < kFloats; i += kWidth) {
    __builtin_prefetch(next + step * kFloats + i, 0, 3);
  }
}

PB_INLINE void multiply_rows(const AmxBlock& b, const uint16_t* w, int row, int rows,
                             Ahead& ahead) {
  float* parked = b.parked + static_cast<size_t>(row) * kAmxColumns;
  const bool below = rows > kTileRows;
  begin_tiles(parked, b.first, below);
  const auto* x = reinterpret_cast<const char*>(b.x) + row * b.x_bytes;
  for (int s = 0; s < b.steps; ++s) {
    ahead.step();
    if (!b.first) prefetch_parked(parked + kPairRows * kAmxColumns, s);
    multiply_step(x, b.x_bytes, below, w);
    x += kStepK * 2;
    w += kStepNumbers;
  }
  end_tiles(b, parked, row, rows);
}

// Multiplies more rows, in register blocks.
inline __attribute__((noinline)) void multiply_many(const AmxBlock& b, const uint16_t* w,
                                                    Ahead ahead) {
  configure_tiles(kTileRows, kTileRows);
  int row = 0;
  for (; b.rows - row >= kPairRows; row += kPairRows) multiply_rows(b, w, row, kPairRows, ahead);
  const int rows = b.rows - row;
  if (rows == 0) return;
  configure_tiles(rows < kTileRows ? rows : kTileRows, rows > kTileRows ? rows - kTileRows : 1);
  multiply_rows(b, w, row, rows, ahead);
}

// Some steps of K, for some rows, of weight tiles [tile_begin, tile_end).
struct AmxPass {
  int tile_begin, tile_end;
  int row, rows;
  int step, end_step;
};

template <typename Weights>
inline void multiply_pass(const GemmArgs& args, const AmxPass& pass, float* scratch) {
  const int steps = (args.n_in + kStepK - 1) / kStepK;
  const auto* x = static_cast<const uint16_t*>(args.x) + pass.row * args.x_stride;
  float* y = args.y + pass.row * args.y_stride;
  auto* expanded = reinterpret_cast<uint16_t*>(scratch + kParkedFloats);
  const int pairs = (pass.rows + kPairRows - 1) / kPairRows;
  const int n_steps = pass.end_step - pass.step;
  const int n_blocks = pairs == 1 ? 1 : (n_steps + kBlockSteps - 1) / kBlockSteps;
  const int block_steps = (n_steps + n_blocks - 1) / n_blocks;
  const bool whole_k = n_steps == steps;
  const int64_t y_bytes = pass.rows * args.y_stride * static_cast<int64_t>(sizeof(float));
  const bool stream = pairs >= kManyPairs && y_bytes >= kStreamedBytes && !args.add &&
                      args.n_out % kWidth == 0 && args.y_stride % kWidth == 0 &&
                      reinterpret_cast<uintptr_t>(y) % 64 == 0;
  const int total = (pass.tile_end - pass.tile_begin) * n_blocks;
  // The blocks of the pass are numbered tile by tile, and within a tile in ascending order of k.
  const auto step_of = [&](int i) { return pass.step + i % n_blocks * block_steps; };
  const auto steps_of = [&](int i) {
    const int left = pass.end_step - step_of(i);
    return left < block_steps ? left : block_steps;
  };
  const auto weights_of = [&](int i) {
    return Weights::begin(args, pass.tile_begin + i / n_blocks, step_of(i));
  };
  for (int i = 0; i < total; ++i) {
    const int tile = pass.tile_begin + i / n_blocks;
    const int place = whole_k ? 0 : tile - pass.tile_begin;
    const AmxBlock block{x + step_of(i) * kStepK,
                         args.x_stride * 2,
                         steps_of(i),
                         pass.rows,
                         step_of(i) == 0,
                         step_of(i) + steps_of(i) == steps,
                         scratch + static_cast<size_t>(place) * kPassRows * kAmxColumns,
                         output_of(args, pass.row, tile, stream)};
    if (pairs == 1) {
      multiply_once<Weights>(block, weights_of(i), expanded);
      continue;
    }
    // Vectors and tiles share a port, so that weights are expanded before they are multiplied, not
    // at the same time.
    auto at = weights_of(i);
    const auto* numbers = reinterpret_cast<const uint16_t*>(at.from);
    if constexpr (Weights::kUnits > 0) {
      for (int s = 0; s < block.steps; ++s) {
        expand_step<Weights, false>(at, expanded + s * kStepNumbers);
      }
      numbers = expanded;
    }
    // With a few pairs of rows, it is fastest to leave reading to the first pair.
    const bool ahead = i + 1 < total && (Weights::kUnits > 0 || pairs >= kManyPairs);
    multiply_many(block, numbers,
                  {ahead ? weights_of(i + 1).from : nullptr,
                   ahead ? steps_of(i + 1) * Weights::kStepBytes / 64 : 0, pairs * block.steps});
  }
}

// Multiplies rows [row_begin, row_end) by weight tiles [tile_begin, tile_end), at most kAmxTiles.
template <typename Weights>
inline void amx_tiles(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                      int row_end, void* scratch) {
  if constexpr (Weights::kLines) {
    if (row_end - row_begin <= kSmallM) {
      static_assert(kSmallMScratch<kAmxTiles> <= kAmxScratch);
      multiply_small_m<kAmxTiles>(args, tile_begin, tile_end, row_begin, row_end,
                                  static_cast<float*>(scratch));
      return;
    }
  }
  const int steps = (args.n_in + kStepK - 1) / kStepK;
  const int n_passes = (row_end - row_begin + kPassRows - 1) / kPassRows;
  const int even_rows = (row_end - row_begin + n_passes - 1) / n_passes;
  const int pass_rows = (even_rows + kPairRows - 1) / kPairRows * kPairRows;
  for (int row = row_begin; row < row_end; row += pass_rows) {
    const int rows = row_end - row < pass_rows ? row_end - row : pass_rows;
    const int most = rows <= kPairRows ? steps : kPassBytes / (rows * kStepK * 2);
    const int n_parts = (steps + most - 1) / most;
    const int part_steps = (steps + n_parts - 1) / n_parts;
    for (int step = 0; step < steps; step += part_steps) {
      const int end_step = step + part_steps < steps ? step + part_steps : steps;
      multiply_pass<Weights>(args, {tile_begin, tile_end, row, rows, step, end_step},
                             static_cast<float*>(scratch));
    }
  }
  release_tiles();
  _mm_sfence();  // orders the streamed stores
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
