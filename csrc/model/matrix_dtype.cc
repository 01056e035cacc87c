#include "model/matrix_dtype.h"

#include <algorithm>

namespace pb {

DType matrix_dtype(const TensorView& view, DType dtype, const Backend& backend) {
  return view.keeps_dtype ? backend.native_dtype(view.dtype) : dtype;
}

DType common_dtype(std::span<const TensorView> views, DType dtype, const Backend& backend) {
  const DType first = matrix_dtype(views[0], dtype, backend);
  const auto is_other = [&](const TensorView& view) {
    return matrix_dtype(view, dtype, backend) != first;
  };
  return std::ranges::any_of(views, is_other) ? DType::kInt8 : first;
}

}  // namespace pb
