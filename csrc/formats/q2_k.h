// q2_k: super-blocks of 2-bit codes, with a 4-bit scale and a 4-bit minimum for each half of a
// group, identical to GGUF's Q2_K.
#pragma once

#include "formats/group.h"

namespace pb {

// An element is d * scale * code - d_min * min. The four groups of each 128 elements share 32 bytes
// of codes, and each group uses two bits of every byte.
struct Q2KBlock {
  uint8_t scales[kSuperBlock / 16];  // for each 16 elements: low nibble scale, high nibble min
  uint8_t codes[kSuperBlock / 4];
  uint16_t d, d_min;  // f16
};
static_assert(sizeof(Q2KBlock) == 84);

struct Q2K : FormatDefaults {
  using Block = Q2KBlock;
  static constexpr int kElements = kSuperBlock;
  static constexpr int kBits = 2;
  static constexpr int kShared = 2;                   // d, d_min
  static constexpr std::array kFactorSizes = {1, 1};  // each byte has scale and min of a half
  using Parts = GroupParts<2, 2>;
  static constexpr const char* kGgufName = "Q2_K";
  static constexpr int kGgufType = 10;

  static Parts take(const Block& block, int group) {
    Parts parts{.shared = {block.d, block.d_min}, .factors = {}, .codes = {}};
    std::memcpy(parts.factors, block.scales + 2 * group, sizeof(parts.factors));
    const uint8_t* from = block.codes + group / 4 * kGroup;
    for (int i = 0; i < kGroup; ++i) parts.codes[i] = from[i] >> group % 4 * 2 & 3;
    return parts;
  }
  // The difference is rounded to f32 once. All other operations are exact.
  static void dequantise(const Parts& parts, float* x) {
    const float d = f16_to_f32(parts.shared[0]), d_min = f16_to_f32(parts.shared[1]);
    for (int i = 0; i < kGroup; ++i) {
      const uint8_t factors = parts.factors[i / (kGroup / 2)];
      const float scale = d * static_cast<float>(factors & 15);
      x[i] = scale * static_cast<float>(parts.codes[i]) - d_min * static_cast<float>(factors >> 4);
    }
  }
  static bool is_sound(const Parts& parts) {
    return is_finite_f16(parts.shared[0]) && is_finite_f16(parts.shared[1]);
  }
};

}  // namespace pb
