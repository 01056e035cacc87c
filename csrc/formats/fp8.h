// fp8: 8-bit floating-point numbers (e4m3) in blocks of kFp8Block consecutive elements with an f32
// scale.
//
// https://arxiv.org/abs/2209.05433. Bytes 0x7f and 0xff are NaN. e4m3 has no infinities.
#pragma once

#include <limits>

#include "formats/group.h"

namespace pb {

inline constexpr int kFp8Block = 128;
inline constexpr float kGreatestE4m3 = 448.0f;

// Element i is e4m3_to_f32(bytes[i]) * scale.
struct Fp8Block {
  float scale;
  uint8_t bytes[kFp8Block];
};
static_assert(sizeof(Fp8Block) == 132);

constexpr bool is_no_e4m3(uint8_t byte) { return (byte & 0x7f) == 0x7f; }

// Converts an e4m3 number to f32, exactly.
inline float e4m3_to_f32(uint8_t byte) {
  if (is_no_e4m3(byte)) return std::numeric_limits<float>::quiet_NaN();
  // Interpreted as f16, these bits are 2^-8 times the number, because the exponent bias of f16 is
  // greater by 8.
  const int f16 = (byte & 0x80) << 8 | (byte & 0x7f) << 7;
  return 256.0f * f16_to_f32(static_cast<uint16_t>(f16));
}

struct Fp8 : FormatDefaults {
  using Block = Fp8Block;
  static constexpr int kElements = kFp8Block;
  static constexpr int kBits = 8;
  static constexpr std::array kFactorSizes = {4};  // the f32 scale of the block
  using Parts = GroupParts<0, 4>;

  static Parts take(const Block& block, int group) {
    Parts parts;
    std::memcpy(parts.factors, &block.scale, sizeof(block.scale));
    std::memcpy(parts.codes, block.bytes + group * kGroup, kGroup);
    return parts;
  }
  static void dequantise(const Parts& parts, float* x) {
    float scale;
    std::memcpy(&scale, parts.factors, sizeof(scale));
    for (int i = 0; i < kGroup; ++i) x[i] = e4m3_to_f32(parts.codes[i]) * scale;
  }
};

}  // namespace pb
