// q6_k: super-blocks of 6-bit codes, identical to GGUF's Q6_K.
#pragma once

#include "formats/half_scales.h"

namespace pb {

// Each 128 elements share 64 bytes with the low 4 bits and 32 bytes with the high 2 bits of their
// codes.
struct Q6KBlock {
  uint8_t pairs[kSuperBlock / 2];
  uint8_t high_bits[kSuperBlock / 4];
  int8_t scales[kSuperBlock / 16];
  uint16_t d;
};
static_assert(sizeof(Q6KBlock) == 210);

struct Q6K : HalfScaleGroups<Q6K> {
  using Block = Q6KBlock;
  static constexpr int kBits = 6;
  static constexpr int kZero = 32;
  static constexpr const char* kGgufName = "Q6_K";
  static constexpr int kGgufType = 14;

  static Parts take(const Block& block, int group) {
    Parts parts{.shared = {block.d}, .factors = {}, .codes = {}};
    std::memcpy(parts.factors, block.scales + 2 * group, sizeof(parts.factors));
    const uint8_t* pairs = block.pairs + group / 4 * 64 + group % 2 * kGroup;
    const uint8_t* high = block.high_bits + group / 4 * kGroup;
    for (int i = 0; i < kGroup; ++i) {
      const int low = group % 4 < 2 ? pairs[i] & 15 : pairs[i] >> 4;
      parts.codes[i] = static_cast<uint8_t>(low | (high[i] >> group % 4 * 2 & 3) << 4);
    }
    return parts;
  }
};

}  // namespace pb
