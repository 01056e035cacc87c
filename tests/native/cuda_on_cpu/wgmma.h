// The products that a warpgroup of Hopper's has under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cuda_on_cpu {

inline constexpr unsigned kWarpgroup = 128;

struct WgmmaProduct {
  uint64_t tiles[2];                            // descriptors of a and b
  uint64_t a[kWarpgroup][2], b[kWarpgroup][2];  // operands as they were
  float* d[kWarpgroup];
};

struct Warpgroup {
  std::vector<WgmmaProduct> started;
  std::vector<size_t> groups;  // ends of committed ones in `started`
  size_t n_done = 0;
  float sums[kWarpgroup][32];  // accumulators while their registers are NaN
  unsigned arrived = 0;
  const void* brought[kWarpgroup];  // by each thread to the operation they meet in
};

}  // namespace cuda_on_cpu
