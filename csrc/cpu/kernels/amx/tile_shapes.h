#pragma once

#include <cstdint>

namespace pb::cpu {

// The operand of ldtilecfg.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

}  // namespace pb::cpu
