// MXFP4 (formats/mxfp4.h) as the matrix products read it.
//
// A tile is (ceil(n_in / 32)) groups of
//   scales (columns) bytes: the exponents
//   (4, columns, 4) bytes of codes: byte b of row j holds that of k = 4 j + b of the group in its
//   low nibble, that of k = 16 + 4 j + b in its high one, as int4 tiles do
// Outputs and elements of k that do not exist are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dispatch/kernels.h"
#include "formats/dtype.h"
#include "formats/mxfp4.h"
#include "formats/read_tensor.h"

namespace pb::cpu {

size_t mxfp4_tile_bytes(int n_in, int tile_columns);

// Writes elements [k, k + kReadBlock) of a row of the stack, whose parts are of kMxfp4, to its
// column of a tile, as far as there are any, and notes what is not finite.
void pack_mxfp4(Stack& stack, int64_t row, int64_t k, DType dtype, const TileLayout& layout,
                int column, std::byte* tile);

// Puts group `index` of K of one column into a tile, and reads it back.
void write_mxfp4_group(const Mxfp4Group& group, int64_t index, int tile_columns, int column,
                       std::byte* tile);
Mxfp4Group read_mxfp4_group(const std::byte* tile, int64_t index, int tile_columns, int column);

}  // namespace pb::cpu
