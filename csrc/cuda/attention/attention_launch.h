// The launches of attention: the choice of kernels, thread counts and shared memory.
#pragma once

#include "cuda/attention/params_attention.h"
#include "cuda/driver/device.h"
#include "cuda/driver/launch.h"
#include "formats/dtype.h"

namespace pb::cuda {

// The properties of a device that limit the choice of kernels.
struct AttentionDevice {
  int n_multiprocessors = 1;
  size_t max_shared_bytes = 0;  // per block: 99 KiB on sm_89, 163 on sm_80, 227 on sm_90 and 100
  bool has_tma = false;         // the code is for sm_90a, and kernels may take tensor maps
};

// The type and shape of a layer's keys and values. head_dim is at most kLargestPaddedDim.
struct AttentionKv {
  DType dtype;
  int head_dim;
  int block_size;
};

// Returns the number of queries of a large tile, or 0 if there is no kernel for large tiles.
int large_tile(const AttentionDevice& device, const AttentionKv& kv);

// Returns true if the kernel for large tiles copies them by a tensor map. If the driver cannot make
// the map, the kernel of launch_attention() takes its place: it attends to tiles of any size, with
// the same bits.
bool has_tma_kernel(const AttentionDevice& device, const AttentionKv& kv);

// The number of blocks that the device runs at once, for small and for large tiles.
int resident_blocks(const AttentionDevice& device);
int resident_large_blocks(const AttentionDevice& device, const AttentionKv& kv);

// Launches attention of a pass's small or large items, to which params.items and n_items point.
Launch<AttentionParams> launch_attention(const AttentionDevice& device, DType kv, bool large,
                                         const AttentionParams& params);

// Launches attention of large items by a map of tiled_kv(). Items that the kernel leaves
// (params.left) need a launch_attention() after it.
Launch<TmaAttentionParams> launch_tma_attention(const AttentionDevice& device, DType kv,
                                                const AttentionParams& params,
                                                const TensorMap& map);

// Returns the description of the map; n_blocks is the number of the layer's KV blocks.
TiledMatrix tiled_kv(const KvLayer& kv, int n_blocks);

// Merges the states of split queries. Launched after attention.
Launch<MergeParams> launch_merge(const AttentionDevice& device, const MergeParams& params);

// Rotates and stores keys and values. Launched before attention. max_rows is the greatest number of
// rows of the pass, or of all passes that use the same graph.
Launch<RopeStoreParams> launch_rope_store(DType kv, int max_rows, const RopeStoreParams& params);

Launch<CopyBlockParams> launch_copy_block(int n_layers, const CopyBlockParams& params);

}  // namespace pb::cuda
