// The launches of attention: which kernels, with how many threads and how much shared memory.
#pragma once

#include "cuda/attention/params_attention.h"
#include "cuda/driver/device.h"
#include "cuda/driver/launch.h"
#include "formats/dtype.h"

namespace pb::cuda {

// What bounds the choice of kernels.
struct AttentionDevice {
  int n_multiprocessors = 1;
  size_t max_shared_bytes = 0;  // of a block: 99 KiB on sm_89, 163 on sm_80, 227 on sm_90 and 100
  bool has_tma = false;         // its code is of sm_90a, and kernels may take tensor maps
};

// Keys and values of a layer. head_dim: at most kLargestPaddedDim.
struct AttentionKv {
  DType dtype;
  int head_dim;
  int block_size;
};

// How many queries a large tile has; 0: there is no kernel of large tiles.
int large_tile(const AttentionDevice& device, const AttentionKv& kv);

// Whether the kernel of large tiles is one by a tensor map. Where the driver makes none,
// launch_attention()'s takes its place: it attends to tiles of any size, with the same bits.
bool has_tma_kernel(const AttentionDevice& device, const AttentionKv& kv);

// Blocks that the device runs at once, of small and of large tiles.
int resident_blocks(const AttentionDevice& device);
int resident_large_blocks(const AttentionDevice& device, const AttentionKv& kv);

// Attention of the small or large items of a pass, to which params.items and n_items point.
Launch<AttentionParams> launch_attention(const AttentionDevice& device, DType kv, bool large,
                                         const AttentionParams& params);

// The same of large items by a map of tiled_kv(). What it leaves (params.left) is for a
// launch_attention() behind it.
Launch<TmaAttentionParams> launch_tma_attention(const AttentionDevice& device, DType kv,
                                                const AttentionParams& params,
                                                const TensorMap& map);

// What the map is made of. n_blocks: that there are of the layer.
TiledMatrix tiled_kv(const KvLayer& kv, int n_blocks);

// After them: the merge of what has been split.
Launch<MergeParams> launch_merge(const AttentionDevice& device, const MergeParams& params);

// Before them. max_rows: what the pass, or all passes of a graph, have at most.
Launch<RopeStoreParams> launch_rope_store(DType kv, int max_rows, const RopeStoreParams& params);

Launch<CopyBlockParams> launch_copy_block(int n_layers, const CopyBlockParams& params);

}  // namespace pb::cuda
