// Groups of MXFP4 as numbers; bf16 holds each of them exactly.
#pragma once

#include "cuda/weights/expand.cuh"

namespace pb::cuda {
namespace {

template <>
struct GroupOf<Mxfp4Format> {
  using Scales = unsigned char;  // the exponent
  static __device__ __forceinline__ Scales load(const unsigned char*, int,
                                                const unsigned char* tail, int in_tail) {
    return tail[in_tail];
  }

  float scale;  // 2^(exponent - 127), subnormal for 0
  __device__ __forceinline__ GroupOf(Scales exponent, int)
      : scale(__uint_as_float(exponent == 0 ? 0x00400000u : unsigned{exponent} << 23)) {}

  // Has the contract of GroupOf<Int4Format>::pairs.
  __device__ __forceinline__ void pairs(unsigned bytes, int, unsigned& low, unsigned& high) const {
    low = bf16_pair(element<0>(bytes), element<8>(bytes));
    high = bf16_pair(element<4>(bytes), element<12>(bytes));
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at, Scales s,
                                                 int is_odd) {
    return GroupOf(s, is_odd).template element<0>(nibble(values, at));
  }

 private:
  // Returns the number of the code in bits kAt to kAt + 3: its sign, exponent and mantissa are
  // moved to their positions in an f32, which makes it 2^-126 times the number, and subnormal if
  // the number is.
  template <int kAt>
  __device__ __forceinline__ float element(unsigned bytes) const {
    const unsigned bits = (bytes << (22 - kAt) & 0x01c00000u) | (bytes << (28 - kAt) & 0x80000000u);
    return __uint_as_float(bits) * 0x1p126f * scale;
  }
};

}  // namespace
}  // namespace pb::cuda
