// FP8: numbers of 8 bits (e4m3), kFp8Block neighbours of a row with an f32 scale.
//
// https://arxiv.org/abs/2209.05433. Bytes 0x7f and 0xff are no numbers; there are no infinities.
#pragma once

#include <cstdint>

namespace pb {

inline constexpr int kFp8Block = 128;
inline constexpr float kGreatestE4m3 = 448.0f;

// Element i is the number of bytes[i] times scale.
struct Fp8Block {
  float scale;
  uint8_t bytes[kFp8Block];
};
static_assert(sizeof(Fp8Block) == 132);

constexpr bool is_no_e4m3(uint8_t byte) { return (byte & 0x7f) == 0x7f; }

// The number of a byte, exactly; NaN where it is none.
float e4m3_to_f32(uint8_t byte);

}  // namespace pb
