// Tiles in shared memory whose rows are read eight at a time without bank conflicts.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {

// Where 16 bytes number `chunk` of a row lie in a tile with rows of kRowBytes (a multiple of 128):
// any eight neighbouring rows have theirs in different banks.
template <int kRowBytes>
__device__ __forceinline__ int swizzled(int row, int chunk) {
  static_assert(kRowBytes % 128 == 0);
  return row * kRowBytes + (chunk ^ (row & 7)) * 16;
}

}  // namespace pb::cuda
