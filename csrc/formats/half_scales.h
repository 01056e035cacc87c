// The base of super-block formats whose elements are d * scale * (code - zero), with one signed
// scale for each half of a group.
#pragma once

#include "formats/group.h"

namespace pb {

// Self::kZero is the code that represents 0. All products in dequantise() are exact.
template <typename Self>
struct HalfScaleGroups : FormatDefaults {
  static constexpr int kElements = kSuperBlock;
  static constexpr int kShared = 1;                   // d
  static constexpr std::array kFactorSizes = {1, 1};  // the scales of the two halves
  using Parts = GroupParts<1, 2>;

  static void dequantise(const Parts& parts, float* x) {
    const float d = f16_to_f32(parts.shared[0]);
    for (int i = 0; i < kGroup; ++i) {
      const auto scale = static_cast<int8_t>(parts.factors[i / (kGroup / 2)]);
      x[i] = d * static_cast<float>(scale) * static_cast<float>(parts.codes[i] - Self::kZero);
    }
  }
  static bool is_sound(const Parts& parts) { return is_finite_f16(parts.shared[0]); }
};

}  // namespace pb
