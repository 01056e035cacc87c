// Tensors in super-blocks of tensors in anything else.
#pragma once

#include <cstddef>

#include "formats/tensors/tensor_view.h"
#include "os/thread_pool.h"

namespace pb {

// Writes `view` in blocks of `dtype`, q4_k, q5_k or q6_k: row after row of whole blocks,
// (view.rows, view.cols / 256 * block_bytes(dtype)) bytes. Numbers that are not finite become
// blocks that Backend::pack refuses. Throws kModelFormat where rows are no whole super-blocks.
void quantise_tensor(const TensorView& view, DType dtype, ThreadPool& pool, std::byte* to);

}  // namespace pb
