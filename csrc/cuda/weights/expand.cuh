// The expansion of whole numbers in groups with an f16 scale: int8, int4, int4_zp; and of IQ4_XS.
// The products are exact in f32, and rounded to bf16 once.
//
// A whole number becomes an f32 by writing its bits into the mantissa of a power of two; one fused
// multiply-add subtracts the power and multiplies by the scale. f16 scales have 11 bits, so that
// the constants below and every product are exact.
//
// Kernels access a format through its GroupOf, which loads a group's scales and computes its
// numbers. expand_super.cuh and expand_mxfp4.cuh contain those of other formats.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/weights/weight_formats.h"

namespace pb::cuda {
namespace {

__device__ __forceinline__ float f16_value(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// Returns two numbers rounded to bf16, the first in the low half.
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

// The parameters of load(), which loads the scales of a group, are:
//   scales  the scales of the row, or of its tiles from one on
//   group   the group's number, counted from `scales`
//   tail    the row's tail, or 16 bytes of it
//   in_tail the group's number, counted from `tail`
// The constructor's is_odd is 1 if the group's number is odd.
template <typename Format>
struct GroupOf;

struct Int8Scale {
  float scale;
  float offset;  // subtracts 2^15 + 128

  __device__ __forceinline__ explicit Int8Scale(uint16_t f16)
      : scale(f16_value(f16)), offset(-32896.0f * scale) {}
};

// Returns the numbers of bytes 0 and 1 of `bytes`.
__device__ __forceinline__ unsigned expand_int8(unsigned bytes, const Int8Scale& s) {
  // The sign bit is inverted: 0x4700'vv'00 is 2^15 + v.
  const float low = __uint_as_float((bytes << 8 & 0xff00u) ^ 0x47008000u);
  const float high = __uint_as_float((bytes & 0xff00u) ^ 0x47008000u);
  return bf16_pair(__fmaf_rn(low, s.scale, s.offset), __fmaf_rn(high, s.scale, s.offset));
}

struct Int4Scale {
  float scale;
  float low_offset;   // subtracts 2^11 + zero point
  float high_offset;  // subtracts 2^7 + zero point

  __device__ __forceinline__ explicit Int4Scale(uint16_t f16)
      : scale(f16_value(f16)), low_offset(-2056.0f * scale), high_offset(-136.0f * scale) {}
  // `zero` is at most 255.
  __device__ __forceinline__ Int4Scale(uint16_t f16, unsigned zero) : scale(f16_value(f16)) {
    const float low = __uint_as_float(zero << 12 | 0x45000000u);  // 2^11 + zero
    low_offset = -low * scale;
    high_offset = -(low - 1920.0f) * scale;
  }
};

// Computes the numbers of the low nibbles of bytes 0 and 1 of `bytes`, and those of their high
// nibbles.
__device__ __forceinline__ void expand_int4(unsigned bytes, const Int4Scale& s, unsigned& low,
                                            unsigned& high) {
  const unsigned first = bytes << 12;  // byte 0 in bits 12 to 19
  const unsigned second = bytes << 4;  // byte 1 in bits 12 to 19
  low = bf16_pair(
      __fmaf_rn(__uint_as_float((first & 0xf000u) | 0x45000000u), s.scale, s.low_offset),
      __fmaf_rn(__uint_as_float((second & 0xf000u) | 0x45000000u), s.scale, s.low_offset));
  high = bf16_pair(
      __fmaf_rn(__uint_as_float((first & 0xf0000u) | 0x43000000u), s.scale, s.high_offset),
      __fmaf_rn(__uint_as_float((second & 0xf0000u) | 0x43000000u), s.scale, s.high_offset));
}

template <>
struct GroupOf<Int8Format> {
  using Scales = uint16_t;
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char*, int) {
    return reinterpret_cast<const uint16_t*>(scales)[group];
  }

  Int8Scale scale;
  __device__ __forceinline__ GroupOf(Scales f16, int) : scale(f16) {}

  // Returns the numbers of two neighbouring bytes.
  __device__ __forceinline__ unsigned pair(unsigned bytes) const {
    return expand_int8(bytes, scale);
  }
  // Returns element `at` in f32; `values` are the bytes of the group.
  static __device__ __forceinline__ float number(const unsigned char* values, int at, Scales f16,
                                                 int) {
    return static_cast<float>(reinterpret_cast<const int8_t*>(values)[at]) * f16_value(f16);
  }
};

// Returns element `at` of a group, for formats with 4 bits.
__device__ __forceinline__ unsigned nibble(const unsigned char* values, int at) {
  const unsigned pair = values[at % 16];
  return at < 16 ? pair & 15u : pair >> 4;
}

template <>
struct GroupOf<Int4Format> {
  using Scales = uint16_t;
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char*, int) {
    return reinterpret_cast<const uint16_t*>(scales)[group];
  }

  Int4Scale scale;
  __device__ __forceinline__ GroupOf(Scales f16, int) : scale(f16) {}

  // Computes pair of pairs `j` (weight_formats.h), whose bytes are the lowest two of `bytes`:
  // elements 2 j and 2 j + 1, and the elements 16 after them.
  __device__ __forceinline__ void pairs(unsigned bytes, int, unsigned& low, unsigned& high) const {
    expand_int4(bytes, scale, low, high);
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at, Scales f16,
                                                 int) {
    return static_cast<float>(static_cast<int>(nibble(values, at)) - 8) * f16_value(f16);
  }
};

template <>
struct GroupOf<Int4ZpFormat> {
  using Scales = unsigned;  // the scale, and the zero point in the high half
  static __device__ __forceinline__ Scales load(const unsigned char* scales, int group,
                                                const unsigned char*, int) {
    return reinterpret_cast<const unsigned*>(scales)[group];
  }

  Int4Scale scale;
  __device__ __forceinline__ GroupOf(Scales s, int) : scale(static_cast<uint16_t>(s), s >> 16) {}

  __device__ __forceinline__ void pairs(unsigned bytes, int, unsigned& low, unsigned& high) const {
    expand_int4(bytes, scale, low, high);
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at, Scales s,
                                                 int) {
    const int whole = static_cast<int>(nibble(values, at)) - static_cast<int>(s >> 16);
    return static_cast<float>(whole) * f16_value(static_cast<uint16_t>(s));
  }
};

// Returns a part of the table of iq4_nl, with 128 added to each number: eight bytes per word, the
// first one lowest.
constexpr uint64_t iq4_nl_bytes(int first) {
  uint64_t bytes = 0;
  for (int i = 0; i < 8; ++i) {
    bytes |= static_cast<uint64_t>(kIq4NlNumbers[first + i] + 128) << 8 * i;
  }
  return bytes;
}
constexpr uint64_t kIq4NlFirst = iq4_nl_bytes(0);
constexpr uint64_t kIq4NlLast = iq4_nl_bytes(8);

template <>
struct GroupOf<Iq4XsFormat> {
  struct Scales {
    uint16_t d;
    uint16_t scale;  // with 32 added
  };
  static __device__ __forceinline__ Scales load(const unsigned char*, int,
                                                const unsigned char* tail, int in_tail) {
    const uint2 tile = *reinterpret_cast<const uint2*>(tail + in_tail / 8 * 8);
    const int bit = 16 + in_tail % 8 * 6;
    const uint64_t bits = tile.x | uint64_t{tile.y} << 32;
    return {static_cast<uint16_t>(tile.x), static_cast<uint16_t>(bits >> bit & 63u)};
  }

  float scale;
  __device__ __forceinline__ GroupOf(const Scales& s, int)
      : scale(f16_value(s.d) * (static_cast<float>(s.scale) - 32.0f)) {}

  // Has the contract of GroupOf<Int4Format>::pairs.
  __device__ __forceinline__ void pairs(unsigned bytes, int, unsigned& low, unsigned& high) const {
    low = bf16_pair(element(bytes & 15u), element(bytes >> 8 & 15u));
    high = bf16_pair(element(bytes >> 4 & 15u), element(bytes >> 12 & 15u));
  }
  static __device__ __forceinline__ float number(const unsigned char* values, int at,
                                                 const Scales& s, int is_odd) {
    return GroupOf(s, is_odd).element(nibble(values, at));
  }

 private:
  __device__ __forceinline__ float element(unsigned code) const {
    const uint64_t eight = code < 8 ? kIq4NlFirst : kIq4NlLast;
    const auto byte = static_cast<unsigned>(eight >> (code % 8 * 8)) & 255u;
    return scale * (__uint_as_float(byte | 0x4b000000u) - 8388736.0f);  // 2^23 + 128
  }
};

}  // namespace
}  // namespace pb::cuda
