// mxfp4: groups of 4-bit floating-point numbers (e2m1) with a power of two (e8m0) as their scale,
// identical to GGUF's MXFP4.
//
// OCP Microscaling Formats (MX) Specification 1.0, 2023.
#pragma once

#include <bit>
#include <limits>

#include "formats/group.h"

namespace pb {

// The scale byte that represents NaN.
inline constexpr uint8_t kMxfp4NoScale = 255;

// Twice the number that each code represents. The doubled numbers are integers.
inline constexpr int8_t kMxfp4Doubles[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};

// Element i is number(pairs[i] & 15) * 2^(scale - 127), and element i + 16 is number(pairs[i] >> 4)
// * 2^(scale - 127), where number(code) is kMxfp4Doubles[code] / 2.
struct Mxfp4Group {
  uint8_t scale;
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Mxfp4Group) == 17);

struct Mxfp4 : FormatDefaults {
  using Block = Mxfp4Group;
  static constexpr int kBits = 4;
  static constexpr std::array kFactorSizes = {1};
  using Parts = GroupParts<0, 1>;
  static constexpr bool kBf16Holds = true;
  static constexpr const char* kGgufName = "MXFP4";
  static constexpr int kGgufType = 39;
  // The greatest scale byte with which every code represents a finite f32: 6 * 2^(252 - 127) is
  // below 2^128.
  static constexpr uint8_t kGreatestScale = 252;

  static Parts take(const Block& block, int) {
    Parts parts;
    parts.factors[0] = block.scale;
    take_pairs(block.pairs, parts.codes);
    return parts;
  }
  // Every product is exact. A number is not finite if the scale is NaN or the product exceeds the
  // range of f32.
  static void dequantise(const Parts& parts, float* x) {
    // The factor is 2^(exponent - 128), because kMxfp4Doubles has doubled numbers. Factors below
    // 2^-126 are subnormal.
    const uint8_t exponent = parts.factors[0];
    const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : (uint32_t{exponent} - 1) << 23;
    const float scale = exponent == kMxfp4NoScale ? std::numeric_limits<float>::quiet_NaN()
                                                  : std::bit_cast<float>(bits);
    for (int i = 0; i < kGroup; ++i) {
      x[i] = scale * static_cast<float>(kMxfp4Doubles[parts.codes[i]]);
    }
  }
  static bool is_sound(const Parts& parts) { return parts.factors[0] <= kGreatestScale; }
};

}  // namespace pb
