// int4: 4-bit integers in groups with an f16 scale, identical to GGUF's Q4_0.
#pragma once

#include "formats/group.h"

namespace pb {

// Element i is ((pairs[i] & 15) - 8) * scale, and element i + 16 is ((pairs[i] >> 4) - 8) * scale.
struct Int4Group {
  uint16_t scale;  // f16
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Int4Group) == 18);

// Rounds x (kGroup) to a group. Tries several scales and chooses the one with the least squared
// error. The scale is infinite if the greatest magnitude of x exceeds about 7 * 65504, and 0 if it
// is below about 7 * 2^-25.
Int4Group quantise_int4(const float* x);

struct Int4 : ScaledGroups<Int4> {
  using Block = Int4Group;
  static constexpr int kBits = 4;
  static constexpr bool kNativeOnly = false;
  static constexpr bool kInt8Holds = true;
  static constexpr const char* kGgufName = "Q4_0";
  static constexpr int kGgufType = 2;
  static constexpr int kZero = 8;

  static int number(uint8_t code) { return code - kZero; }
  static void take_codes(const Block& block, uint8_t* codes) { take_pairs(block.pairs, codes); }
  static Block quantise(const float* x) { return quantise_int4(x); }
  static bool is_sound(const Parts& parts) {  // the same condition as for int8
    const float scale = f16_value(parts.factors);
    return kZero * scale <= kGreatestF16 && kZero * scale >= -kGreatestF16;
  }
};

}  // namespace pb
