// Lists of dtypes that tests loop over, derived from the list of formats: a new format is in them.
#pragma once

#include <functional>
#include <vector>

#include "formats/dtype.h"

namespace pb::test {

inline std::vector<DType> dtypes_where(const std::function<bool(DType)>& is_one) {
  std::vector<DType> dtypes;
  for (const DType dtype : kAllDTypes) {
    if (is_one(dtype)) dtypes.push_back(dtype);
  }
  return dtypes;
}

// Formats that nothing is rounded to, fp8 aside: RandomFp8 makes its blocks.
inline const std::vector<DType> kNativeDTypes =
    dtypes_where([](DType dtype) { return is_native_only(dtype) && dtype != DType::kFp8; });
// ... whose scales are f16: not mxfp4.
inline const std::vector<DType> kF16NativeDTypes = dtypes_where([](DType dtype) {
  return is_native_only(dtype) && dtype != DType::kFp8 && dtype != DType::kMxfp4;
});

inline const std::vector<DType> kSuperBlockDTypes = dtypes_where(in_super_blocks);

}  // namespace pb::test
