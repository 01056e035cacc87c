// Super-blocks (base/super_block.h) as the matrix products read them.
//
// A tile is (n_in / 256) super-blocks of
//   f16 d (columns), then f16 d_min (columns); Q6_K: d alone
//   (8 groups, 2, columns) bytes: scale and min; Q6_K: the signed scales of both halves
//   (8 groups, rows, columns, 4) bytes of numbers. Byte b of row j < 4 has the low nibbles of k =
//   4 j + b of the group in its low nibble and of k = 16 + 4 j + b in its high one, as int4 tiles
//   do. Q5_K: byte b of one row more has the fifth bits: bit j of k = 4 j + b, bit 4 + j of k = 16
//   + 4 j + b. Q6_K: byte b of two rows more has bits 4 and 5: bits 2 j and 2 j + 1 of row 4 are
//   those of k = 4 j + b, of row 5 those of k = 16 + 4 j + b
// Outputs that do not exist are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/super_block.h"

namespace pb::cpu {

size_t super_tile_bytes(int n_in, DType dtype, int tile_columns);

// Puts group `group` of K of one column into a tile of zeros, and reads it back.
void write_super_group(const SuperGroup& group, DType dtype, int64_t index, int tile_columns,
                       int column, std::byte* tile);
SuperGroup read_super_group(const std::byte* tile, DType dtype, int64_t index, int tile_columns,
                            int column);

}  // namespace pb::cpu
