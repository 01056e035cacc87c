// int8: 8-bit integers in groups with an f16 scale, identical to GGUF's Q8_0.
#pragma once

#include "formats/group.h"

namespace pb {

// Element i is values[i] * scale.
struct Int8Group {
  uint16_t scale;  // f16
  int8_t values[kGroup];
};
static_assert(sizeof(Int8Group) == 34);

// Rounds x (kGroup) to a group whose scale is the greatest magnitude of x divided by 127. The scale
// is infinite if that magnitude exceeds about 127 * 65504, and 0 if it is below about 127 * 2^-25.
Int8Group quantise_int8(const float* x);

struct Int8 : ScaledGroups<Int8> {
  using Block = Int8Group;
  static constexpr int kBits = 8;
  static constexpr bool kNativeOnly = false;
  static constexpr bool kInt8Holds = true;
  static constexpr const char* kGgufName = "Q8_0";
  static constexpr int kGgufType = 8;
  static constexpr int kZero = 128;

  static int number(uint8_t code) { return code - kZero; }
  static void take_codes(const Block& block, uint8_t* codes) {
    for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(block.values[i] + kZero);
  }
  static Block quantise(const float* x) { return quantise_int8(x); }
  // Every number must be in the range of f16, because some targets scale the sums of activations in
  // f16.
  static bool is_sound(const Parts& parts) {
    const float scale = f16_value(parts.factors);
    return kZero * scale <= kGreatestF16 && kZero * scale >= -kGreatestF16;
  }
};

}  // namespace pb
