// y = 2 x, each block one number; with one of these bugs planted.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

enum class BlocksBug {
  kNone,
  kRace,     // all blocks write one number
  kInOrder,  // a block reads what the one before it has written
};

struct BlocksParams {
  const float* x;  // (n_blocks)
  float* y;        // (n_blocks), zero at first
};

// 32 threads, the first of which works.
template <BlocksBug kBug>
__device__ __forceinline__ void double_with_bug(const BlocksParams& p) {
  if (threadIdx.x != 0) return;
  const unsigned block = blockIdx.x;
  if (kBug == BlocksBug::kNone) p.y[block] = 2.0f * p.x[block];
  if (kBug == BlocksBug::kRace) p.y[0] = 1.0f;
  if (kBug == BlocksBug::kInOrder) {
    const bool is_turn = block == 0 || p.y[block - 1] == 2.0f * p.x[block - 1];
    p.y[block] = is_turn ? 2.0f * p.x[block] : 0.0f;
  }
}

PB_KERNEL(blocks, BlocksParams, 32) { double_with_bug<BlocksBug::kNone>(p); }
PB_KERNEL(blocks_race, BlocksParams, 32) { double_with_bug<BlocksBug::kRace>(p); }
PB_KERNEL(blocks_in_order, BlocksParams, 32) { double_with_bug<BlocksBug::kInOrder>(p); }

}  // namespace
}  // namespace pb::cuda
