// q3_k: super-blocks of 3-bit codes, with a 6-bit scale for each half of a group, identical to
// GGUF's Q3_K.
#pragma once

#include "formats/half_scales.h"

namespace pb {

// An element is d * (scale - 32) * (code - 4). The four groups of each 128 elements share 32 bytes
// of low_bits, and each group uses two bits of every byte. The high bit of element i of group g is
// bit g of high_bits[i]. The low 4 bits of scales i and i + 8 are the low and the high nibble of
// scales[i]. The high 2 bits of scale i are bits 2 (i / 4) and 2 (i / 4) + 1 of scales[8 + i % 4].
struct Q3KBlock {
  uint8_t high_bits[kGroup];
  uint8_t low_bits[kSuperBlock / 4];
  uint8_t scales[12];
  uint16_t d;  // f16
};
static_assert(sizeof(Q3KBlock) == 110);

// The parts contain -d and 32 - scale instead of d and scale - 32. The product of 32 - scale and
// code - 4 then always fits in a signed byte, whereas -32 * -4 = 128 would not.
struct Q3K : HalfScaleGroups<Q3K> {
  using Block = Q3KBlock;
  static constexpr int kBits = 3;
  static constexpr int kZero = 4;
  static constexpr const char* kGgufName = "Q3_K";
  static constexpr int kGgufType = 11;

  static Parts take(const Block& block, int group) {
    Parts parts{.shared = {static_cast<uint16_t>(block.d ^ 0x8000u)}, .factors = {}, .codes = {}};
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * group + half;
      const int low = block.scales[i % 8] >> i / 8 * 4 & 15;
      const int high = block.scales[8 + i % 4] >> i / 4 * 2 & 3;
      parts.factors[half] = static_cast<uint8_t>(32 - (low | high << 4));
    }
    const uint8_t* from = block.low_bits + group / 4 * kGroup;
    for (int i = 0; i < kGroup; ++i) {
      const int low = from[i] >> group % 4 * 2 & 3;
      parts.codes[i] = static_cast<uint8_t>(low | (block.high_bits[i] >> group & 1) << 2);
    }
    return parts;
  }
};

}  // namespace pb
