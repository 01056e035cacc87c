// The products that a warpgroup of Hopper's has under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator.h"

namespace cuda_on_cpu {

inline constexpr unsigned kWarpgroup = 128;

struct WgmmaProduct {
  WgmmaCall calls[kWarpgroup];
  WgmmaPart parts[kWarpgroup];  // operands as they were
  unsigned accumulators;        // number of those that it adds to
};

// Accumulators of products under way: their registers are NaN.
struct WgmmaAccumulators {
  unsigned n_products = 0;
  float* d[kWarpgroup];
  float sums[kWarpgroup][64];  // (n / 2) of each thread
};
inline constexpr unsigned kMostAccumulators = 2;  // under way at once
inline constexpr size_t kMostProducts = 32;       // likewise

struct Warpgroup {
  WgmmaProduct products[kMostProducts];  // number i at i % kMostProducts, until it is done
  std::vector<size_t> groups;            // ends of committed ones, as numbers
  size_t n_started = 0;
  size_t n_done = 0;

  WgmmaProduct& product(size_t number) { return products[number % kMostProducts]; }
  WgmmaAccumulators accumulators[kMostAccumulators];
  unsigned arrived = 0;
  const void* brought[kWarpgroup];  // by each thread to the operation they meet in
};

}  // namespace cuda_on_cpu
