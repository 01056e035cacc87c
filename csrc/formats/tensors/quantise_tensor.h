// Quantises tensors of any dtype to super-blocks.
#pragma once

#include <cstddef>

#include "formats/tensors/tensor_view.h"
#include "os/thread_pool.h"

namespace pb {

// Quantises `view` to `dtype`, which is q4_k, q5_k or q6_k. Writes the blocks of row after row:
// (view.rows, view.cols / 256 * block_bytes(dtype)) bytes. Numbers that are not finite make blocks
// that Backend::pack refuses. Throws kModelFormat if the number of columns is not a multiple of a
// super-block.
void quantise_tensor(const TensorView& view, DType dtype, ThreadPool& pool, std::byte* to);

}  // namespace pb
