// Sums of products on AMX: four accumulator tiles, which are parked in f32, exactly, while others
// are computed, and finally written to y.
#pragma once

#include <cstdint>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/amx/expand-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kTileFloats = kTileRows * kWidth;  // per accumulator tile
constexpr int kPairRows = 2 * kTileRows;         // of a register block, which is two by two tiles

// The destination of a weight tile's sums.
struct TileOutput {
  float* y;  // first row of the pass, first column of the tile
  int64_t y_stride;
  const float* bias;  // of the tile's columns, or null
  int n_columns;      // existing columns
  bool add;
  bool stream;  // bypasses the caches: the output is large and consists of whole lines
};

// Returns the destination of weight tile `tile`, for rows from `row` on.
PB_INLINE TileOutput output_of(const GemmArgs& args, int row, int tile, bool stream) {
  const int column = tile * kAmxColumns;
  return {args.y + row * args.y_stride + column,
          args.y_stride,
          args.bias == nullptr ? nullptr : args.bias + column,
          args.n_out - column,
          args.add,
          stream};
}

// y (=|+=) an accumulator tile + bias, for `rows` rows from `row` on and the columns from `column`
// on.
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

// Sets accumulators 0 to 3, or 0 and 1 unless `four`, to zero or to their parked values.
PB_INLINE void begin_tiles(const float* parked, bool first, bool four) {
  if (first) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    return;
  }
  tile_load<0>(parked, 64);
  tile_load<1>(parked + kTileFloats, 64);
  if (!four) return;
  tile_load<2>(parked + 2 * kTileFloats, 64);
  tile_load<3>(parked + 3 * kTileFloats, 64);
}
PB_INLINE void park_tiles(float* parked, bool four) {
  tile_store<0>(parked, 64);
  tile_store<1>(parked + kTileFloats, 64);
  if (!four) return;
  tile_store<2>(parked + 2 * kTileFloats, 64);
  tile_store<3>(parked + 3 * kTileFloats, 64);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
