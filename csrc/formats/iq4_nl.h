// iq4_nl: 4-bit indices into a fixed table of integers, in groups with an f16 scale, identical to
// GGUF's IQ4_NL.
#pragma once

#include "formats/group.h"

namespace pb {

// The integer that each code represents.
inline constexpr int8_t kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};

// Element i is kIq4NlNumbers[pairs[i] & 15] * scale, and element i + 16 is kIq4NlNumbers[pairs[i]
// >> 4] * scale.
struct Iq4NlGroup {
  uint16_t scale;  // f16
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Iq4NlGroup) == 18);

struct Iq4Nl : ScaledGroups<Iq4Nl> {
  using Block = Iq4NlGroup;
  static constexpr int kBits = 4;
  static constexpr bool kInt8Holds = true;
  static constexpr const char* kGgufName = "IQ4_NL";
  static constexpr int kGgufType = 20;

  static int number(uint8_t code) { return kIq4NlNumbers[code]; }
  static void take_codes(const Block& block, uint8_t* codes) { take_pairs(block.pairs, codes); }
};

}  // namespace pb
