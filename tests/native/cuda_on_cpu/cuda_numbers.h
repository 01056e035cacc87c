// CUDA's 16-bit floats, rounded operations and bit functions for g++.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline float __int_as_float(int i) { return std::bit_cast<float>(i); }
inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }

// Compiled with -ffp-contract=off, so that each is one rounding.
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }

inline int __popc(unsigned v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(static_cast<unsigned>(v)); }
inline int __ffs(int v) { return __builtin_ffs(v); }

template <typename T>
T __ldg(const T* at) {
  return *at;
}

struct __nv_bfloat16 {
  uint16_t bits;
};
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return {bits}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float(unsigned{v.bits} << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  const uint32_t u = __float_as_uint(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

struct __half {
  uint16_t bits;
};
inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline float __half2float(__half v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t magnitude = v.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Scaling by 2^112 moves the exponent's bias from 15 to 127, subnormals included.
  const float scaled = __uint_as_float(magnitude << 13) * 0x1p112f;
  return __uint_as_float(sign | __float_as_uint(scaled));
}
inline __half __float2half_rn(float f) {
  const uint32_t u = __float_as_uint(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const float magnitude = __uint_as_float(u & 0x7fffffffu);
  if (magnitude != magnitude) return {0x7fff};
  if (magnitude >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x1p-14f) {
    // The sum's last bit is worth 2^-24, as a subnormal half's is: the addition rounds.
    const uint32_t rounded = __float_as_uint(magnitude + 0.5f) - __float_as_uint(0.5f);
    return {static_cast<uint16_t>(sign | rounded)};
  }
  const uint32_t m = u & 0x7fffffffu;
  const uint32_t rounded = (m + 0xfffu + ((m >> 13) & 1u)) >> 13;
  return {static_cast<uint16_t>(sign | (rounded - (112u << 10)))};
}
