// Quantised weights as numbers: (whole number x scale), exact in f32, and rounded to bf16 once.
//
// A whole number becomes an f32 by writing its bits into the mantissa of a power of two; one fused
// multiply-add takes the power off and multiplies by the scale: f16 scales have 11 bits, so that
// the constants below and every product are exact.
#pragma once

#include "cuda/kernels/device_code.h"

namespace pb::cuda {
namespace {

__device__ __forceinline__ float f16_value(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// Two numbers rounded to bf16, the first in the low half.
__device__ __forceinline__ unsigned bf16_pair(float low, float high) {
#ifdef __CUDACC__
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
#else
  const auto bits = [](float v) -> unsigned {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
  };
  return bits(low) | bits(high) << 16;
#endif
}

struct Int8Scale {
  float scale;
  float offset;  // of 2^15 + 128 + the whole number

  __device__ __forceinline__ explicit Int8Scale(uint16_t f16)
      : scale(f16_value(f16)), offset(-32896.0f * scale) {}
};

// The numbers of bytes 0 and 1 of `bytes`.
__device__ __forceinline__ unsigned expand_int8(unsigned bytes, const Int8Scale& s) {
  // The sign bit is turned over: 0x4700'vv'00 is 2^15 + v.
  const float low = __uint_as_float((bytes << 8 & 0xff00u) ^ 0x47008000u);
  const float high = __uint_as_float((bytes & 0xff00u) ^ 0x47008000u);
  return bf16_pair(__fmaf_rn(low, s.scale, s.offset), __fmaf_rn(high, s.scale, s.offset));
}

struct Int4Scale {
  float scale;
  float low_offset;   // of 2^11 + 8 + the whole number
  float high_offset;  // of 2^7 + 8 + the whole number

  __device__ __forceinline__ explicit Int4Scale(uint16_t f16)
      : scale(f16_value(f16)), low_offset(-2056.0f * scale), high_offset(-136.0f * scale) {}
};

// The numbers of the low nibbles of bytes 0 and 1 of `bytes`, and of their high nibbles.
__device__ __forceinline__ void expand_int4(unsigned bytes, const Int4Scale& s, unsigned& low,
                                            unsigned& high) {
  const unsigned first = bytes << 12;  // byte 0 in bits 12 to 19
  const unsigned second = bytes << 4;  // byte 1 there
  low = bf16_pair(
      __fmaf_rn(__uint_as_float((first & 0xf000u) | 0x45000000u), s.scale, s.low_offset),
      __fmaf_rn(__uint_as_float((second & 0xf000u) | 0x45000000u), s.scale, s.low_offset));
  high = bf16_pair(
      __fmaf_rn(__uint_as_float((first & 0xf0000u) | 0x43000000u), s.scale, s.high_offset),
      __fmaf_rn(__uint_as_float((second & 0xf0000u) | 0x43000000u), s.scale, s.high_offset));
}

}  // namespace
}  // namespace pb::cuda
