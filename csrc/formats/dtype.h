// Element types and their conversions. Rounding is to nearest, ties to even.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace pb {

// kInt8 and kInt4 are whole numbers in groups with a scale each, kInt4Zp with a zero point too
// (formats/quantise.h), kQ5_0 with a fifth bit, kIQ4_NL by a table; kQ4K, kQ5K and kQ6K are
// super-blocks of such groups (formats/super_block.h); kMxfp4 is numbers of 4 bits in groups with a
// power of two each (formats/mxfp4.h); kFp8 is numbers of 8 bits in blocks with an f32 scale each
// (formats/fp8.h).
enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kInt8,
  kInt4,
  kInt4Zp,
  kQ4K,
  kQ5K,
  kQ6K,
  kMxfp4,
  kQ5_0,
  kIQ4_NL,
  kFp8
};

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kBF16,   DType::kF16,  DType::kInt8,
                                       DType::kInt4, DType::kInt4Zp, DType::kQ4K,  DType::kQ5K,
                                       DType::kQ6K,  DType::kMxfp4,  DType::kQ5_0, DType::kIQ4_NL,
                                       DType::kFp8};

constexpr bool in_super_blocks(DType t) {
  return t == DType::kQ4K || t == DType::kQ5K || t == DType::kQ6K;
}
// Whether a matrix is of it only where its tensors are: nothing is rounded to it.
constexpr bool is_only_kept(DType t) {
  return t == DType::kInt4Zp || t == DType::kMxfp4 || t == DType::kQ5_0 || t == DType::kIQ4_NL ||
         t == DType::kFp8 || in_super_blocks(t);
}
// Whether an int8 matrix holds all numbers of groups of it: a scale times whole numbers of a byte.
constexpr bool int8_holds(DType t) {
  return t == DType::kInt8 || t == DType::kInt4 || t == DType::kQ5_0 || t == DType::kIQ4_NL;
}
constexpr bool is_quantised(DType t) {
  return t == DType::kInt8 || t == DType::kInt4 || is_only_kept(t);
}

// Bytes of a number that is not quantised.
constexpr size_t dtype_size(DType t) { return t == DType::kF32 ? 4 : 2; }

constexpr const char* dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kInt8:
      return "int8";
    case DType::kInt4:
      return "int4";
    case DType::kInt4Zp:
      return "int4_zp";
    case DType::kQ4K:
      return "q4_k";
    case DType::kQ5K:
      return "q5_k";
    case DType::kQ6K:
      return "q6_k";
    case DType::kMxfp4:
      return "mxfp4";
    case DType::kQ5_0:
      return "q5_0";
    case DType::kIQ4_NL:
      return "iq4_nl";
    case DType::kFp8:
      return "fp8";
  }
  return "?";
}

inline float bf16_to_f32(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

inline uint16_t f32_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((u >> 16) | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero and subnormals, exact
  return sign ? -magnitude : magnitude;
}

inline uint16_t f32_to_f16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                        // below 2^-14: counted in steps of 2^-24
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24f + 0x1p23f;  // rounds here
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(steps) - 0x4b000000u));
  }
  return static_cast<uint16_t>(
      sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

}  // namespace pb
