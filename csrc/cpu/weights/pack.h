// The layout of weights for the matrix products.
//
// A packed matrix is a sequence of tiles. A tile contains a few outputs ("columns") and is one
// contiguous stream over k, so that a product reads memory sequentially:
//   f32   tile (n_in, columns)
//   bf16  tile (padded n_in / 2, columns, 2): pairs of k, the operand order of vdpbf16ps and
//         tdpbf16ps; n_in is padded to a multiple of 32. Compressed: pack_compressed_bf16.h
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

// The version of the output of pack_matrix. Every change of the layout has to increase it:
// otherwise packed weights that an earlier version left on disk would be read wrongly.
inline constexpr int kPackedLayoutVersion = 6;

inline int64_t tiles_of(int n_out, int tile_columns) {
  return (n_out + tile_columns - 1) / tile_columns;
}

// Implements Backend::pack. Throws kModelFormat, with the name of the tensor and the first such
// element, if shapes do not match or a number is not finite (in the matrix's dtype). A matrix whose
// dtype is_native_only accepts parts of its own dtype only. With TileLayout::run, bf16 is
// compressed if possible, else plain.
PackedMatrix pack_matrix(std::span<const TensorView> parts, std::span<const TensorView> biases,
                         DType dtype, const TileLayout& layout, ThreadPool& pool);

// Returns the sizes in bytes of pack_matrix's result.
MatrixBytes packed_bytes(int n_out, int n_in, DType dtype, const TileLayout& layout);

// Computes out (n_in) = row `row` of the matrix in f32; adds the row to out if `add`.
void unpack_row(const Matrix& matrix, const TileLayout& layout, int row, bool add, float* out);

}  // namespace pb::cpu
