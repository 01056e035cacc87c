#include "formats/mxfp4.h"

#include <bit>
#include <limits>

namespace pb {

void dequantise(const Mxfp4Group& group, float* x) {
  // 2^(scale - 128), as the whole numbers are doubled: below 2^-126 as a subnormal.
  const uint32_t bits =
      group.scale < 2 ? 0x00200000u << group.scale : (uint32_t{group.scale} - 1) << 23;
  const float scale = group.scale == kMxfp4NoScale ? std::numeric_limits<float>::quiet_NaN()
                                                   : std::bit_cast<float>(bits);
  for (int i = 0; i < kGroup / 2; ++i) {
    x[i] = scale * static_cast<float>(kMxfp4Doubles[group.pairs[i] & 15]);
    x[i + kGroup / 2] = scale * static_cast<float>(kMxfp4Doubles[group.pairs[i] >> 4]);
  }
}

}  // namespace pb
