// q5_k: super-blocks of 5-bit codes, identical to GGUF's Q5_K.
#pragma once

#include "formats/scale_and_min.h"

namespace pb {

struct Q5KBlock {
  uint16_t d, d_min;
  uint8_t scales[12];
  uint8_t fifth_bits[kSuperBlock / 8];  // bit g of byte i is bit 4 of element i of group g
  uint8_t pairs[kSuperBlock / 2];
};
static_assert(sizeof(Q5KBlock) == 176);

struct Q5K : ScaleAndMinGroups {
  using Block = Q5KBlock;
  static constexpr int kBits = 5;
  static constexpr const char* kGgufName = "Q5_K";
  static constexpr int kGgufType = 13;

  static Parts take(const Block& block, int group) {
    Parts parts{.shared = {block.d, block.d_min}, .factors = {}, .codes = {}};
    take_scale_and_min(block.scales, group, parts.factors);
    take_super_nibbles(block.pairs, group, parts.codes);
    for (int i = 0; i < kGroup; ++i) {
      parts.codes[i] =
          static_cast<uint8_t>(parts.codes[i] | ((block.fifth_bits[i] >> group) & 1) << 4);
    }
    return parts;
  }
};

}  // namespace pb
