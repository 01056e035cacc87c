// MXFP4: groups of kGroup numbers of 4 bits (e2m1) that share a power of two (e8m0).
//
// OCP Microscaling Formats (MX) Specification 1.0, 2023. The blocks are those of GGUF's MXFP4, so
// that its files load without loss.
#pragma once

#include <cstdint>

#include "formats/quantise.h"

namespace pb {

// The exponent byte that stands for no number.
inline constexpr uint8_t kMxfp4NoScale = 255;

// Twice the number that each code stands for: whole numbers.
inline constexpr int8_t kMxfp4Doubles[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                             0, -1, -2, -3, -4, -6, -8, -12};

// Elements i and i + 16 are the numbers of pairs[i]'s low and high nibble times 2^(scale - 127).
struct Mxfp4Group {
  uint8_t scale;
  uint8_t pairs[kGroup / 2];
};
static_assert(sizeof(Mxfp4Group) == 17);

// x (kGroup) = the numbers that a group stands for, exactly. Not finite where the scale is no
// number, or what it multiplies is above the greatest of f32.
void dequantise(const Mxfp4Group& group, float* x);

}  // namespace pb
