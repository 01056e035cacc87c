// int4_zp: int4 with a zero point for each group, as in GPTQ, AWQ and compressed-tensors.
#pragma once

#include "formats/group.h"

namespace pb {

// Element i is ((pairs[i] & 15) - zero) * scale, and element i + 16 is ((pairs[i] >> 4) - zero) *
// scale.
struct Int4ZpGroup {
  uint16_t scale;  // f16
  uint8_t zero;
  uint8_t unused;
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Int4ZpGroup) == 20);

struct Int4Zp : FormatDefaults {
  using Block = Int4ZpGroup;
  static constexpr int kBits = 4;
  static constexpr std::array kFactorSizes = {2, 1};  // scale, zero point
  using Parts = GroupParts<0, 3>;

  static Parts take(const Block& block, int) {
    Parts parts;
    std::memcpy(parts.factors, &block.scale, sizeof(block.scale));
    parts.factors[2] = block.zero;
    take_pairs(block.pairs, parts.codes);
    return parts;
  }
  static void dequantise(const Parts& parts, float* x) {
    const float scale = f16_value(parts.factors);
    for (int i = 0; i < kGroup; ++i) {
      x[i] = scale * static_cast<float>(parts.codes[i] - parts.factors[2]);
    }
  }
  static bool is_sound(const Parts& parts) { return is_finite_f16(f16_bits(parts.factors)); }
};

}  // namespace pb
