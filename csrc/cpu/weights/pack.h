// Weights as the matrix products read them.
//
// A packed matrix is a row of tiles, each some outputs ("columns") wide and one contiguous stream
// over k, so that a product reads memory in the order in which it lies:
//   f32   tile (n_in, columns)
//   bf16  tile (padded n_in / 2, columns, 2): pairs of k, the operand order of vdpbf16ps and
//         tdpbf16ps; n_in is padded to a multiple of 32. Coded: cpu/weights/pack_coded.h
//   int8  tile (ceil(n_in / 32)) of groups: f16 scales (columns), then (8, columns, 4) bytes, each
//         the whole number + 128: four of k, the operand order of vpdpbusd
//   int4  tile (ceil(n_in / 32)) of groups: f16 scales (columns), then (4, columns, 4) bytes, each
//         two whole numbers + 8: byte b of row j holds k = 4 j + b of the group in its low nibble,
//         k = 16 + 4 j + b in its high one. With TileLayout::lines: (columns / 4, 8, 4) words of
//         16 bits, each four numbers: word (i, j, c) holds k = 4 j to 4 j + 3 of column 4 i + c,
//         the lowest in the lowest nibble
//   int4_zp  tile (ceil(n_in / 32)) of groups: f16 scales (columns), zero points (columns, bytes),
//         then (4, columns, 4) bytes as int4 has them
//   q5_0  tile (ceil(n_in / 32)) of groups: f16 scales (columns), then (5, columns, 4) bytes. Of
//         the first row bits j and 4 + j of byte b are the fifth ones of k = 4 j + b and of k = 16
//         + 4 j + b; four rows as int4 has them follow, each number 16 above its own
//   iq4_nl  tile as int4 has it, without lines; the nibbles are codes (formats/quantise.h)
//   q4_k, q5_k, q6_k  tile (n_in / 256) of super-blocks (cpu/weights/pack_super_blocks.h)
//   mxfp4  tile (ceil(n_in / 32)) of groups (cpu/weights/pack_mxfp4.h)
//   fp8   tile (n_in / 128) of blocks (cpu/weights/pack_fp8.h)
// Outputs and elements of k that do not exist are zero.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/dispatch/kernels.h"
#include "formats/tensor_view.h"
#include "ops/tensors.h"
#include "os/thread_pool.h"

namespace pb::cpu {

// The version of all that pack_matrix writes. Raise it with every change of the layout: otherwise
// packed weights that an earlier version left on disk are read wrongly.
inline constexpr int kPackedLayoutVersion = 6;

// The number added to the whole numbers of int8 and int4 weights, so that they are stored unsigned.
constexpr int zero_point(DType dtype) { return dtype == DType::kInt8 ? 128 : 8; }

inline int64_t tiles_of(int n_out, int tile_columns) {
  return (n_out + tile_columns - 1) / tile_columns;
}

// Makes what Backend::pack returns. Throws kModelFormat where shapes do not fit
// each other or a number is not finite (in the matrix's dtype), naming the tensor and the first
// such element. A matrix of a dtype that is_only_kept takes parts of its own alone. With
// TileLayout::run bf16 is coded where it can be, else plain.
PackedMatrix pack_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                         DType dtype, const TileLayout& layout, ThreadPool& pool);

// The sizes in bytes of the matrix that pack_matrix makes.
MatrixBytes packed_bytes(int n_out, int n_in, DType dtype, const TileLayout& layout);

// out (n_in) = row `row` of the matrix in f32, added to what is there if `add`.
void unpack_row(const Matrix& matrix, const TileLayout& layout, int row, bool add, float* out);

}  // namespace pb::cpu
