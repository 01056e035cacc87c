// Super-blocks (formats/super_block.h) as the matrix products read them.
//
// A tile is (n_in / 256) super-blocks of
//   f16 d (columns), then f16 d_min (columns); Q6_K: d alone
// and then 8 groups, one behind the other:
//   (2, columns) bytes: scale and min; Q6_K: the signed scales of both halves
//   (rows, columns, 4) bytes of numbers, of which those of nibbles come last. Byte b of the j-th of
//   these four has the low nibbles of k = 4 j + b of the group in its low nibble and of k = 16 + 4
//   j + b in its high one, as int4 tiles do. Q5_K: byte b of the row before them has the fifth
//   bits: bit j of k = 4 j + b, bit 4 + j of k = 16 + 4 j + b. Q6_K: byte b of the two rows before
//   them has bits 4 and 5: bits 2 j and 2 j + 1 of the first are those of k = 4 j + b, of the
//   second those of k = 16 + 4 j + b
// So all lies in the order in which it is read, which CPUs that fetch ahead by themselves follow.
// Outputs that do not exist are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/super_block.h"

namespace pb::cpu {

size_t super_tile_bytes(int n_in, DType dtype, int tile_columns);

// Puts group `group` of K of one column into a tile of zeros, and reads it back.
void write_super_group(const SuperGroup& group, DType dtype, int64_t index, int tile_columns,
                       int column, std::byte* tile);
SuperGroup read_super_group(const std::byte* tile, DType dtype, int64_t index, int tile_columns,
                            int column);

}  // namespace pb::cpu
