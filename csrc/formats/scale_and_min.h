// The 6-bit scales and minimums that Q4_K and Q5_K have in common.
//
// The blocks of the K formats are identical to GGUF's, so that GGUF files are loaded without loss:
// https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
#pragma once

#include "formats/group.h"

namespace pb {

// Writes the scale and the minimum of one of the 8 groups to scales[0] and scales[1]. For a group g
// < 4 they are the low 6 bits of packed[g] and packed[g + 4]. For a group g >= 4, their low 4 bits
// are the nibbles of packed[g + 4], and their high 2 bits are the high bits of packed[g - 4] and
// packed[g].
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

// Reads the nibbles of group `group`. Groups 2 i and 2 i + 1 are the low and the high nibbles of
// the same 32 bytes.
inline void take_super_nibbles(const uint8_t* pairs, int group, uint8_t* codes) {
  const uint8_t* from = pairs + group / 2 * kGroup;
  for (int i = 0; i < kGroup; ++i) codes[i] = (from[i] >> group % 2 * 4) & 15;
}

// The base of super-block formats whose elements are d * scale * code - d_min * min, with a scale
// and a minimum for each group. The difference is rounded to f32 once. All other operations are
// exact.
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
