// iq4_nl: codes of 4 bits into a table of whole numbers, in groups with an f16 scale, as GGUF's
// IQ4_NL.
#pragma once

#include "formats/group.h"

namespace pb {

// The whole number that each code stands for.
inline constexpr int8_t kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                             1,    13,   25,  38,  53,  69,  89,  113};

// Elements i and i + 16 are the numbers of pairs[i]'s low and high nibble times scale.
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
