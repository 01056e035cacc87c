// The layout of tiles in shared memory whose rows are read eight at a time without bank conflicts.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {

// Returns the offset of the 16-byte piece number `chunk` of a row, in a tile with rows of kRowBytes
// (a multiple of 128). The pieces of any eight neighbouring rows are in different banks.
template <int kRowBytes>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  static_assert(kRowBytes % 128 == 0);
  return row * kRowBytes + (chunk ^ (row & 7)) * 16;
}

}  // namespace pb::cuda
