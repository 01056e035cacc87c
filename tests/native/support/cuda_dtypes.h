// As dtype_lists.h, of the formats that CUDA has kernels for.
#pragma once

#include <vector>

#include "cuda/weights/pack.h"
#include "dtype_lists.h"

namespace pb::test {

// Their dtypes, for the initialiser of an array.
#define PB_DTYPE_CONSTANT(constant, name, Format) DType::constant,
#define PB_CUDA_DTYPES PB_CUDA_FORMATS(PB_DTYPE_CONSTANT)

inline const std::vector<DType> kCudaNativeDTypes = dtypes_where(
    [](DType dtype) { return is_native_only(dtype) && cuda::native_dtype(dtype) == dtype; });
inline const std::vector<DType> kCudaF16NativeDTypes = dtypes_where([](DType dtype) {
  return is_native_only(dtype) && cuda::native_dtype(dtype) == dtype && dtype != DType::kMxfp4;
});

}  // namespace pb::test
