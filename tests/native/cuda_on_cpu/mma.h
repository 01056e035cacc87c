// The arithmetic of one mma: a product of 16x16 and 16x8 numbers of 16 bits, added to f32.
#pragma once

#include <cstdint>

#include "emulator.h"

namespace cuda_on_cpu {

struct MmaTile {
  alignas(64) uint16_t a[16][16];  // (row, k)
  uint16_t b[16][8];               // (k, column)
  alignas(32) float c[16][8];      // (row, column)
};

// tile.c += tile.a tile.b, added as the model says. Of the truncating models, no zero has a sign,
// and NaN has no payload.
void multiply(MmaTile& tile, MmaInput input, MmaModel model);

}  // namespace cuda_on_cpu
