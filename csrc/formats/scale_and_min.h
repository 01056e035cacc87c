// Scales and minimums of 6 bits: what Q4_K and Q5_K share.
//
// The blocks of the K formats are those of GGUF, so that its files load without loss:
// https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include "formats/group.h"

namespace pb {

// Scale and minimum of a group of 8. Those of groups 0 to 3 are the low 6 bits of bytes; the two
// high bits of these bytes belong to groups 4 to 7, whose low 4 bits are in the last four bytes.
inline void take_scale_and_min(const uint8_t* packed, int group, uint8_t* scales) {
  if (group < 4) {
    scales[0] = packed[group] & 63;
    scales[1] = packed[group + 4] & 63;
    return;
  }
  const uint8_t low = packed[group + 4];
  scales[0] = static_cast<uint8_t>((low & 15) | packed[group - 4] >> 6 << 4);
  scales[1] = static_cast<uint8_t>(low >> 4 | packed[group] >> 6 << 4);
}

// Nibbles of group `group`: groups 2 i and 2 i + 1 are the low and the high nibbles of 32 bytes.
inline void take_super_nibbles(const uint8_t* pairs, int group, uint8_t* codes) {
  const uint8_t* from = pairs + group / 2 * kGroup;
  for (int i = 0; i < kGroup; ++i) codes[i] = (from[i] >> group % 2 * 4) & 15;
}

// Super-blocks whose element is d scale code - d_min min, with a scale and a min for each group.
// The difference is rounded to f32 once, all else is exact.
struct ScaleAndMinGroups : FormatDefaults {
  static constexpr int kElements = kSuperBlock;
  static constexpr int kShared = 2;                   // d, d_min
  static constexpr std::array kFactorSizes = {1, 1};  // scale, min
  using Parts = GroupParts<2, 2>;

  static void dequantise(const Parts& parts, float* x) {
    const float scale = f16_to_f32(parts.shared[0]) * static_cast<float>(parts.factors[0]);
    const float min = f16_to_f32(parts.shared[1]) * static_cast<float>(parts.factors[1]);
    for (int i = 0; i < kGroup; ++i) x[i] = scale * static_cast<float>(parts.codes[i]) - min;
  }
  static bool is_sound(const Parts& parts) {
    return is_finite_f16(parts.shared[0]) && is_finite_f16(parts.shared[1]);
  }
};

}  // namespace pb
