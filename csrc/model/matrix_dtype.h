// The dtype that the matrices of a model are packed in.
#pragma once

#include <span>

#include "ops/backend.h"

namespace pb {

// Returns the dtype of the matrix that is made of a tensor if the user asks for `dtype`: a tensor
// that keeps its own dtype keeps it as far as the backend can.
DType matrix_dtype(const TensorView& view, DType dtype, const Backend& backend);

// Returns the dtype of matrices that must agree: that of all tensors, or int8 if they differ.
DType common_dtype(std::span<const TensorView> views, DType dtype, const Backend& backend);

}  // namespace pb
