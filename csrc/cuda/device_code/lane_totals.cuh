// The storage of an attention lane's values over all segments that it has merged.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

// A lane's total values (kColumnTiles, 4): in shared memory, kThreads apart, or in registers.
template <typename Tile, bool = Tile::kTotalsInRegisters>
struct LaneTotals {
  float* values;

  __device__ __forceinline__ void take(float* shared_totals) {
    values = shared_totals + threadIdx.x;
  }
  __device__ __forceinline__ float& at(int tile, int i) {
    return values[(tile * 4 + i) * Tile::kThreads];
  }
};
template <typename Tile>
struct LaneTotals<Tile, true> {
  float values[Tile::kColumnTiles][4];

  __device__ __forceinline__ void take(float*) {}
  __device__ __forceinline__ float& at(int tile, int i) { return values[tile][i]; }
};

}  // namespace
}  // namespace pb::cuda
