// The types of stored keys and values, and the types in which tensor cores multiply them.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

// A type Kv of keys and values has:
//
// Number   the type of a stored number
// kIsF16   true if numbers are multiplied as f16, false for bf16
// kScaled  true for whole numbers with a scale for each key and each value; bf16 holds them exactly
// pack     rounds two numbers to the multiplied type
// finite   returns true if two packed numbers are finite
struct Bf16Kv {
  using Number = uint16_t;
  static constexpr bool kIsF16 = false;
  static constexpr bool kScaled = false;
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    return pack_bf16(low, high);
  }
  static __device__ __forceinline__ bool finite(unsigned pair) {
    return (pair & 0x7f80u) != 0x7f80u && (pair & 0x7f800000u) != 0x7f800000u;
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
    mma_bf16(c, a, b);
  }
};

struct F16Kv {
  using Number = uint16_t;
  static constexpr bool kIsF16 = true;
  static constexpr bool kScaled = false;
  // Clamps finite numbers to the range of f16.
  static __device__ __forceinline__ float held(float x) {
    constexpr float kMost = 3.40282347e38f;
    if (x > 65504.0f && x <= kMost) return 65504.0f;
    if (x < -65504.0f && x >= -kMost) return -65504.0f;
    return x;
  }
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    return pack_f16(held(low), held(high));
  }
  static __device__ __forceinline__ bool finite(unsigned pair) {
    return (pair & 0x7c00u) != 0x7c00u && (pair & 0x7c000000u) != 0x7c000000u;
  }
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
    mma_f16(c, a, b);
  }
};

struct Int8Kv {
  using Number = int8_t;
  static constexpr bool kIsF16 = false;
  static constexpr bool kScaled = true;
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    return pack_bf16(low, high);
  }
  static __device__ __forceinline__ bool finite(unsigned) { return true; }
  static __device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
    mma_bf16(c, a, b);
  }
};

// Returns number i of the four int8 numbers in a word, exactly: the bits of 2^23 + 128 + number are
// assembled, and the constant is subtracted.
__device__ __forceinline__ float int8_of(unsigned word, int i) {
  const unsigned raised = (word ^ 0x80808080u) >> (8 * i) & 0xffu;
  return __int_as_float(static_cast<int>(0x4b000000u | raised)) - 8388736.0f;
}

// Returns the pair of values at `position` and the next one, with zeros where the position is not
// seen.
__device__ __forceinline__ unsigned seen_pair(unsigned pair, int position, int begin, int end) {
  if (position < begin || position >= end) pair &= 0xffff0000u;
  if (position + 1 < begin || position + 1 >= end) pair &= 0x0000ffffu;
  return pair;
}

}  // namespace
}  // namespace pb::cuda
