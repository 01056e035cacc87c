// q5_1: 5-bit codes in groups with an f16 scale and an f16 minimum, identical to GGUF's Q5_1.
#pragma once

#include "formats/q4_1.h"

namespace pb {

// Element i is d * code + m. The low 4 bits of the codes are stored as in q4_1, and bit 4 as in
// q5_0.
struct Q5_1Group {
  uint16_t d, m;  // f16
  uint8_t fifth_bits[kGroup / 8];
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Q5_1Group) == 24);

struct Q5_1 : ScaledGroupsWithMin<Q5_1> {
  using Block = Q5_1Group;
  static constexpr int kBits = 5;
  static constexpr const char* kGgufName = "Q5_1";
  static constexpr int kGgufType = 7;

  static void take_codes(const Block& block, uint8_t* codes) {
    take_pairs(block.pairs, codes);
    take_fifth_bits(block.fifth_bits, codes);
  }
};

}  // namespace pb
