// How arrays lie one behind another in dynamic shared memory. A kernel takes them from
// SharedArrays (device_code.h), the host asks SharedBytes how many bytes a launch needs; a function
// that is given one or the other describes them once:
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

// Where an array begins that comes behind `offset` bytes of others. alignment: a power of two.
PB_HOST_DEVICE constexpr size_t aligned_offset(size_t offset, size_t alignment) {
  return (offset + alignment - 1) & ~(alignment - 1);
}

class SharedBytes {
 public:
  // Adds an array of n Ts. Returns null: the host has none.
  template <typename T>
  constexpr T* take(size_t n, size_t alignment = 16) {
    bytes_ = aligned_offset(bytes_, alignment) + n * sizeof(T);
    return nullptr;
  }

  // Of all arrays so far.
  constexpr size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace pb::cuda
