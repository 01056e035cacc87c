// int4: whole numbers of 4 bits in groups with an f16 scale, as GGUF's Q4_0.
#pragma once

#include "formats/group.h"

namespace pb {

// Elements i and i + 16 are (low nibble - 8) * scale and (high nibble - 8) * scale of pairs[i].
struct Int4Group {
  uint16_t scale;  // f16
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Int4Group) == 18);

// The group near to x (kGroup) by the scale, of several, with the least squared error. The scale of
// numbers above about 65504 times 7 is infinite; if all numbers are below 2^-25 times that, it is
// 0.
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
  static bool is_sound(const Parts& parts) {  // as of int8
    const float scale = f16_value(parts.factors);
    return kZero * scale <= kGreatestF16 && kZero * scale >= -kGreatestF16;
  }
};

}  // namespace pb
