// q4_k: super-blocks of 4-bit codes, identical to GGUF's Q4_K.
#pragma once

#include "formats/scale_and_min.h"

namespace pb {

struct Q4KBlock {
  uint16_t d, d_min;   // f16
  uint8_t scales[12];  // 8 scales and 8 mins, 6 bits each
  uint8_t pairs[kSuperBlock / 2];
};
static_assert(sizeof(Q4KBlock) == 144);

struct Q4K : ScaleAndMinGroups {
  using Block = Q4KBlock;
  static constexpr int kBits = 4;
  static constexpr const char* kGgufName = "Q4_K";
  static constexpr int kGgufType = 12;

  static Parts take(const Block& block, int group) {
    Parts parts{.shared = {block.d, block.d_min}, .factors = {}, .codes = {}};
    take_scale_and_min(block.scales, group, parts.factors);
    take_super_nibbles(block.pairs, group, parts.codes);
    return parts;
  }
};

}  // namespace pb
