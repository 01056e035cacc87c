// q4_1: 4-bit codes in groups with an f16 scale and an f16 minimum, identical to GGUF's Q4_1.
#pragma once

#include "formats/group.h"

namespace pb {

// The base of formats whose elements are d * code + m, with an f16 scale d and an f16 minimum m for
// each group. The sum is rounded to f32 once.
template <typename Self>
struct ScaledGroupsWithMin : FormatDefaults {
  static constexpr std::array kFactorSizes = {2, 2};  // d, m
  using Parts = GroupParts<0, 4>;

  template <typename Block>
  static Parts take(const Block& block, int) {
    Parts parts;
    std::memcpy(parts.factors, &block.d, 2);
    std::memcpy(parts.factors + 2, &block.m, 2);
    Self::take_codes(block, parts.codes);
    return parts;
  }
  static void dequantise(const Parts& parts, float* x) {
    const float d = f16_value(parts.factors), m = f16_value(parts.factors + 2);
    for (int i = 0; i < kGroup; ++i) x[i] = d * static_cast<float>(parts.codes[i]) + m;
  }
  static bool is_sound(const Parts& parts) {
    return is_finite_f16(f16_bits(parts.factors)) && is_finite_f16(f16_bits(parts.factors + 2));
  }
};

// Element i is d * (pairs[i] & 15) + m, and element i + 16 is d * (pairs[i] >> 4) + m.
struct Q4_1Group {
  uint16_t d, m;  // f16
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Q4_1Group) == 20);

struct Q4_1 : ScaledGroupsWithMin<Q4_1> {
  using Block = Q4_1Group;
  static constexpr int kBits = 4;
  static constexpr const char* kGgufName = "Q4_1";
  static constexpr int kGgufType = 3;

  static void take_codes(const Block& block, uint8_t* codes) { take_pairs(block.pairs, codes); }
};

}  // namespace pb
