// The layout of arrays in dynamic shared memory. A kernel takes its arrays from SharedArrays
// (device_code.h), and the host computes the bytes of a launch with SharedBytes. A function
// template over both describes the arrays once:
//
//   template <typename Arrays>
//   PB_HOST_DEVICE Tiles take_tiles(Arrays& arrays, int n) {
//     return {arrays.template take<float>(n), arrays.template take<int>(n)};
//   }
#pragma once

#include <cstddef>

#ifdef __CUDACC__
#define PB_HOST_DEVICE __host__ __device__
#else
#define PB_HOST_DEVICE
#endif

namespace pb::cuda {

// Returns the offset of an array that follows `offset` bytes of others. alignment is a power of
// two.
PB_HOST_DEVICE constexpr size_t aligned_offset(size_t offset, size_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}

class SharedBytes {
 public:
  // Adds an array of n elements. Returns null, because the host has no array.
  template <typename T>
  constexpr T* take(size_t n, size_t alignment = 16) {
    bytes_ = aligned_offset(bytes_, alignment) + n * sizeof(T);
    return nullptr;
  }

  // Returns the bytes of all arrays so far.
  constexpr size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace pb::cuda
