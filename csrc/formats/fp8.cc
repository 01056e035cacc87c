#include "formats/fp8.h"

#include <limits>

#include "formats/dtype.h"

namespace pb {

float e4m3_to_f32(uint8_t byte) {
  if (is_no_e4m3(byte)) return std::numeric_limits<float>::quiet_NaN();
  // As f16 the same bits are 2^-8 times the number: the exponent's bias is 8 more there.
  const int f16 = (byte & 0x80) << 8 | (byte & 0x7f) << 7;
  return 256.0f * f16_to_f32(static_cast<uint16_t>(f16));
}

}  // namespace pb
