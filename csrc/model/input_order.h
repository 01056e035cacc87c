// The order in which a matrix takes its inputs (TensorView::order), checked; and the tensors that
// may be plain matrices only, refused where they are not.
#pragma once

#include "base/aligned_buffer.h"
#include "formats/tensors/tensor_view.h"

namespace pb {

// Returns true if two tensors over one input take it in the same order.
bool same_order(const TensorView& a, const TensorView& b);

// The order as PackedMatrix has it; empty where there is none. Throws kModelFormat, naming the
// tensor, where it does not name every input once.
AlignedBuffer input_order(const TensorView& view);

// Throws kModelFormat, naming the tensor, where it has an order: `what` takes inputs as they come.
void refuse_order(const TensorView& view, const char* what);

// Throws kModelFormat, naming the tensor, where it is quantised or made on demand: `what` is read
// number by number.
void refuse_blocks(const TensorView& view, const char* what);

}  // namespace pb
