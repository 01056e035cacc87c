// iq4_xs: super-blocks of 4-bit indices into the table of iq4_nl, with a 6-bit scale for each
// group, identical to GGUF's IQ4_XS.
#pragma once

#include "formats/iq4_nl.h"

namespace pb {

// Element i of group g is kIq4NlNumbers[pairs[16 g + i] & 15] * d * (scale - 32). Element i + 16
// has the high nibble instead of the low one. The low 4 bits of the scales of groups 2 i and 2 i +
// 1 are the low and the high nibble of scales_low[i]. The high 2 bits of the scale of group g are
// bits 2 g and 2 g + 1 of scales_high.
struct Iq4XsBlock {
  uint16_t d;  // f16
  uint16_t scales_high;
  uint8_t scales_low[kGroupsOfSuperBlock / 2];
  uint8_t pairs[kSuperBlock / 2];
};
static_assert(sizeof(Iq4XsBlock) == 136);

struct Iq4Xs : FormatDefaults {
  using Block = Iq4XsBlock;
  static constexpr int kElements = kSuperBlock;
  static constexpr int kBits = 4;
  static constexpr int kShared = 1;                // d
  static constexpr std::array kFactorSizes = {1};  // the signed scale
  using Parts = GroupParts<1, 1>;
  static constexpr const char* kGgufName = "IQ4_XS";
  static constexpr int kGgufType = 23;

  static Parts take(const Block& block, int group) {
    Parts parts{.shared = {block.d}, .factors = {}, .codes = {}};
    const int low = block.scales_low[group / 2] >> group % 2 * 4 & 15;
    const int high = block.scales_high >> 2 * group & 3;
    parts.factors[0] = static_cast<uint8_t>((low | high << 4) - 32);
    take_pairs(block.pairs + group * (kGroup / 2), parts.codes);
    return parts;
  }
  static void dequantise(const Parts& parts, float* x) {
    const auto factor = static_cast<int8_t>(parts.factors[0]);
    const float scale = f16_to_f32(parts.shared[0]) * static_cast<float>(factor);
    for (int i = 0; i < kGroup; ++i) {
      x[i] = scale * static_cast<float>(kIq4NlNumbers[parts.codes[i]]);
    }
  }
  static bool is_sound(const Parts& parts) { return is_finite_f16(parts.shared[0]); }
};

}  // namespace pb
