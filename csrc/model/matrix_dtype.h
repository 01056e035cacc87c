// Chooses the dtype in which the matrices of a model are packed.
#pragma once

#include <span>

#include "ops/backend.h"

namespace pb {

// Returns the dtype of the matrix that is packed from a tensor if the user asks for `dtype`. A
// tensor with keeps_dtype stays in its own dtype if the backend supports it natively.
DType matrix_dtype(const TensorView& view, DType dtype, const Backend& backend);

// Returns a common dtype for matrices that must have the same one: the dtype of all tensors, or
// int8 if their dtypes differ.
DType common_dtype(std::span<const TensorView> views, DType dtype, const Backend& backend);

}  // namespace pb
