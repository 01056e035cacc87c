// The copy of a KV block in all layers.
#pragma once

#include "cuda/attention/params_attention.h"
#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

template <typename Word>
__device__ __forceinline__ void copy_words(const unsigned char* from, unsigned char* to,
                                           int64_t bytes) {
  const int64_t n = bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
  }
}

// The grid is any number of blocks by the number of layers.
PB_KERNEL(copy_block, CopyBlockParams, kCopyBlockThreads) {
  const int64_t layer = int64_t{blockIdx.y} * p.n_blocks;
  const unsigned char* const from = p.data + (layer + p.from) * p.block_bytes;
  unsigned char* const to = p.data + (layer + p.to) * p.block_bytes;
  if (p.block_bytes % 16 == 0) {
    copy_words<uint4>(from, to, p.block_bytes);
  } else {  // only in tiny models
    copy_words<unsigned char>(from, to, p.block_bytes);
  }
}

}  // namespace
}  // namespace pb::cuda
