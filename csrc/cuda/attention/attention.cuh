// The attention kernels, instantiated by type of keys and values, padded head size and tile size.
#pragma once

#include "cuda/attention/attention_items.cuh"

namespace pb::cuda {
namespace {

#define PB_ATTENTION(kv, Kv, dim)                                                             \
  PB_CROWDED_KERNEL(attention_##kv##_##dim##_small, AttentionParams, kTileThreads,            \
                    small_tiles_at_once(dim)) {                                               \
    attend_items<SmallTile<Kv, dim>>(p);                                                      \
  }                                                                                           \
  PB_LARGE_KERNEL(attention_##kv##_##dim##_large, AttentionParams, large_tile_threads(dim)) { \
    attend_items<LargeTile<Kv, dim>>(p);                                                      \
  }
#define PB_ATTENTION_DIMS(kv, Kv) \
  PB_ATTENTION(kv, Kv, 64)        \
  PB_ATTENTION(kv, Kv, 96)        \
  PB_ATTENTION(kv, Kv, 128)       \
  PB_ATTENTION(kv, Kv, 256)       \
  PB_ATTENTION(kv, Kv, 512)

PB_ATTENTION_DIMS(bf16, Bf16Kv)
PB_ATTENTION_DIMS(f16, F16Kv)
PB_ATTENTION_DIMS(int8, Int8Kv)

#undef PB_ATTENTION_DIMS
#undef PB_ATTENTION

}  // namespace
}  // namespace pb::cuda
