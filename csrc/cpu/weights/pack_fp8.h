// The layout of FP8 weights (formats/fp8.h) for the matrix products.
//
// A tile is (n_in / 128) blocks of
//   scales (columns) f32
//   (64, columns, 2) bytes of numbers: pairs of k, as in bf16 tiles
// Outputs that do not exist are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dispatch/kernels.h"
#include "formats/dtype.h"
#include "formats/tensors/read_tensor.h"

namespace pb::cpu {

size_t fp8_tile_bytes(int n_in, int tile_columns);

// If k is the start of a block, writes that block of a row of the stack to its column of a tile,
// and records numbers that are NaN or too large for a product. All parts of the stack must be of
// kFp8.
void pack_fp8(Stack& stack, int64_t row, int64_t k, const TileLayout& layout, int column,
              std::byte* tile);

// Returns group `group` of k in a column of a tile.
Fp8::Parts unpack_fp8(const std::byte* tile, int64_t group, int tile_columns, int column);

}  // namespace pb::cpu
