// The launches of attention: which kernels, with how many threads and how much shared memory.
#pragma once

#include "base/dtype.h"
#include "cuda/kernels/params_attention.h"
#include "cuda/launch.h"

namespace pb::cuda {

// What bounds the choice of kernels.
struct AttentionDevice {
  int n_multiprocessors = 1;
  size_t max_shared_bytes = 0;  // of a block: 99 KiB on sm_89, 163 on sm_80, 227 on sm_90 and 100
};

// How many queries a large tile has for these keys and values; 0: there is no kernel of them.
int large_tile(const AttentionDevice& device, DType kv, int head_dim);

// Blocks that the attention kernels run at once on a multiprocessor, about.
inline constexpr int kBlocksPerMultiprocessor = 4;

// Attention of the small or large items of a pass, to which params.items and n_items point. kv: the
// type of keys and values. head_dim: at most kLargestPaddedDim.
Launch<AttentionParams> launch_attention(const AttentionDevice& device, DType kv, bool large,
                                         const AttentionParams& params);

// After them: the merge of what has been split.
Launch<MergeParams> launch_merge(const AttentionDevice& device, const MergeParams& params);

// Before them. max_rows: what the pass, or all passes of a graph, have at most.
Launch<RopeStoreParams> launch_rope_store(DType kv, int max_rows, const RopeStoreParams& params);

Launch<CopyBlockParams> launch_copy_block(int n_layers, const CopyBlockParams& params);

}  // namespace pb::cuda
