// The products that a warpgroup of Hopper's has under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator.h"

namespace cuda_on_cpu {

inline constexpr unsigned kWarpgroup = 128;

struct WgmmaProduct {
  uint64_t tiles[2];            // descriptors of a and b
  WgmmaPart parts[kWarpgroup];  // operands as they were
  float* d[kWarpgroup];
};

struct Warpgroup {
  std::vector<WgmmaProduct> started;
  std::vector<size_t> groups;  // ends of committed ones in `started`
  size_t n_done = 0;
  float sums[kWarpgroup][64];  // accumulators while their registers are NaN
  unsigned arrived = 0;
  const void* brought[kWarpgroup];  // by each thread to the operation they meet in
};

}  // namespace cuda_on_cpu
