// Quantises tensors of any dtype to super-blocks.
#pragma once

#include <cstddef>

#include "formats/tensors/tensor_view.h"
#include "os/thread_pool.h"

namespace pb {

// Quantises `view` to `dtype`, which is q4_k, q5_k or q6_k. Writes the blocks of row after row:
// (view.rows, view.cols / 256 * block_bytes(dtype)) bytes. Throws kModelFormat if the number of
// columns is not a multiple of a super-block, and, with the element, for a number that is not
// finite or is too large for the f16 scales of the blocks.
void quantise_tensor(const TensorView& view, DType dtype, ThreadPool& pool, std::byte* to);

}  // namespace pb
