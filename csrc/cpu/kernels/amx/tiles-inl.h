// The configuration of AMX tiles for products.
#pragma once

#include <cstdint>

#include "cpu/kernels/amx/instructions-inl.h"
#include "cpu/kernels/amx/tile_shapes.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kTileRows = 16;

// Sets the shapes of the tiles: sums 0 and 1 and x 4 have `rows` rows; sums 2 and 3 and x 5 have
// rows_below rows. All rows have 64 bytes.
PB_INLINE void configure_tiles(int rows, int rows_below) {
  TileShapes shapes{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};
  const auto above = static_cast<uint8_t>(rows);
  const auto below = static_cast<uint8_t>(rows_below);
  const uint8_t of_tile[8] = {above, above, below, below, above, below, kTileRows, kTileRows};
  for (int t = 0; t < 8; ++t) shapes.rows[t] = of_tile[t];
  configure_tiles(shapes);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
