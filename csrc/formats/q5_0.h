// q5_0: 5-bit integers in groups with an f16 scale, identical to GGUF's Q5_0.
#pragma once

#include "formats/group.h"

namespace pb {

// An element is (code - 16) * scale. The low 4 bits of the codes of elements i and i + 16 are the
// low and the high nibble of pairs[i]. Bit 4 of the code of element i is bit i % 8 of fifth_bits[i
// / 8].
struct Q5_0Group {
  uint16_t scale;  // f16
  uint8_t fifth_bits[kGroup / 8];
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Q5_0Group) == 22);

struct Q5_0 : ScaledGroups<Q5_0> {
  using Block = Q5_0Group;
  static constexpr int kBits = 5;
  static constexpr bool kInt8Holds = true;
  static constexpr const char* kGgufName = "Q5_0";
  static constexpr int kGgufType = 6;

  static int number(uint8_t code) { return code - 16; }
  static void take_codes(const Block& block, uint8_t* codes) {
    take_pairs(block.pairs, codes);
    take_fifth_bits(block.fifth_bits, codes);
  }
};

}  // namespace pb
