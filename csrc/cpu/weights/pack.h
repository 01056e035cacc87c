// Weights as the matrix products read them.
//
// A packed matrix is a row of tiles, each some outputs ("columns") wide and one contiguous stream
// over k, so that a product reads memory in the order in which it lies:
//   f32   tile (n_in, columns)
//   bf16  tile (padded n_in / 2, columns, 2): pairs of k, the operand order of vdpbf16ps and
//         tdpbf16ps; n_in is padded to a multiple of 32. Coded: cpu/weights/pack_coded.h
//   fp8   tile (n_in / 128) of blocks (cpu/weights/pack_fp8.h)
//   other weight formats (formats/list.h): groups (cpu/weights/group_tiles.h)
// Outputs and elements of k that do not exist are zero.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/dispatch/kernels.h"
#include "formats/tensors/tensor_view.h"
#include "ops/tensors.h"
#include "os/thread_pool.h"

namespace pb::cpu {

// The version of all that pack_matrix writes. Raise it with every change of the layout: otherwise
// packed weights that an earlier version left on disk are read wrongly.
inline constexpr int kPackedLayoutVersion = 6;

inline int64_t tiles_of(int n_out, int tile_columns) {
  return (n_out + tile_columns - 1) / tile_columns;
}

// Makes what Backend::pack returns. Throws kModelFormat where shapes do not fit
// each other or a number is not finite (in the matrix's dtype), naming the tensor and the first
// such element. A matrix of a dtype that is_native_only takes parts of its own alone. With
// TileLayout::run bf16 is coded where it can be, else plain.
PackedMatrix pack_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                         DType dtype, const TileLayout& layout, ThreadPool& pool);

// The sizes in bytes of the matrix that pack_matrix makes.
MatrixBytes packed_bytes(int n_out, int n_in, DType dtype, const TileLayout& layout);

// out (n_in) = row `row` of the matrix in f32, added to what is there if `add`.
void unpack_row(const Matrix& matrix, const TileLayout& layout, int row, bool add, float* out);

}  // namespace pb::cpu
