// Checks the order in which a matrix takes its inputs (TensorView::order), and refuses tensors that
// must be plain, unquantised matrices.
#pragma once

#include "base/aligned_buffer.h"
#include "formats/tensors/tensor_view.h"

namespace pb {

// Returns true if two tensors take their common input in the same order.
bool same_order(const TensorView& a, const TensorView& b);

// Returns the input order in the format of PackedMatrix, or an empty buffer if the tensor has none.
// Throws kModelFormat, naming the tensor, if the order is not a permutation of the inputs.
AlignedBuffer input_order(const TensorView& view);

// Throws kModelFormat, naming the tensor, if the tensor has an input order. `what` names the use
// that does not support one.
void refuse_order(const TensorView& view, const char* what);

// Throws kModelFormat, naming the tensor, if the tensor is quantised or made on demand. `what`
// names the use that reads the tensor number by number.
void refuse_blocks(const TensorView& view, const char* what);

}  // namespace pb
