// The parameters of the attention kernels: a layer, and the work list of a pass.
//
// The work list is made once per pass and read by every layer. All of it is at fixed addresses, and
// the kernels read its length from memory, so that a captured graph of launches serves every pass.
#pragma once

#include <cstdint>

#include "cuda/device_code/shared_bytes.h"
#include "cuda/device_code/tensor_map.h"

namespace pb::cuda {

inline constexpr int kSegment = 256;  // positions of a softmax state, cut by absolute position
inline constexpr int kSmallTile = 16;

// True for the widest heads. Their tiles fit the 99 KiB of shared memory that a block has on any
// GPU: fewer positions at a time, fewer queries, and totals in registers.
PB_HOST_DEVICE constexpr bool is_wide(int padded_dim) { return padded_dim > 256; }
// Returns the number of positions in shared memory at a time, which divides kSegment. It is part of
// the order of sums.
PB_HOST_DEVICE constexpr int chunk_of(int padded_dim) { return is_wide(padded_dim) ? 32 : 64; }
PB_HOST_DEVICE constexpr int large_tile_of(int padded_dim) { return is_wide(padded_dim) ? 32 : 64; }

// One row of the batch. slot is KV block * block_size + index in the block.
struct AttentionRow {
  int32_t position;
  int32_t slot;
};

// One q head of one row. Every kv head has the same list.
struct AttentionQuery {
  int32_t row;
  int32_t head;         // index among the q heads that share a kv head
  int32_t end;          // 1 + its own position
  int32_t limit;        // 1 + the last position of its sequence in the pass
  int32_t first_state;  // state of segment s has number first_state + s, if split
};

// Queries over one range of positions in the same KV blocks: up to 16 in a small item, up to
// large_tile() in a large one.
struct AttentionItem {
  int32_t first_query;
  int32_t n_queries;
  int32_t block_table;  // offset in block_tables
  int32_t first_segment;
  int32_t end_segment;
  int32_t min_end;  // the least and greatest AttentionQuery::end of its queries
  int32_t max_end;
  int32_t limit;  // the greatest AttentionQuery::limit
  int32_t split;  // 1: the states are written for a merge; 0: the item has all segments
};

struct AttentionCounts {
  int32_t n_rows;
  int32_t n_small_items;
  int32_t n_large_items;
  int32_t n_split_queries;
};

// The keys and values of one layer; block_size is 1 << block_shift.
struct KvLayer {
  void* numbers;  // (n_blocks, 2, n_kv_heads, block_size, head_dim): keys, then values
  float* scales;  // (n_blocks, 2, n_kv_heads, block_size) for int8, else null
  int n_kv_heads;
  int block_shift;
  int head_dim;
};

struct AttentionParams {
  const float* qkv;  // (n_rows, (n_heads + 2 n_kv_heads) * head_dim)
  KvLayer kv;
  int n_heads;
  int sliding_window;  // number of positions up to its own that a query sees; 0 = all
  int after;           // greatest number of later positions that a query sees
  float scale;         // multiplies scores
  float softcap;       // caps the scaled scores; 0 = none
  const float* sinks;  // (n_heads), or null
  const AttentionQuery* queries;
  const AttentionItem* items;   // (*n_items)
  const int32_t* n_items;       // in AttentionCounts
  const int32_t* block_tables;  // those of all sequences, one after the other
  float* states;                // (n_kv_heads, n_states, head_dim + 2)
  int64_t n_states;
  // (max_rows, out_stride) in f32 or bf16; n_heads * head_dim columns of it are written.
  void* out;
  int64_t out_stride;  // numbers
  int out_bf16;
  // (*n_items, n_kv_heads), initially zero. The tensor-map kernel sets the flag of an item that it
  // leaves to the mma.sync kernel, which clears it. Null if the mma.sync kernel is launched alone.
  int32_t* left;
};

// The parameters of a kernel that copies keys and values by a map. A box is a KV block or a part of
// one, up to chunk_of() rows, by 64 numbers.
struct TmaAttentionParams {
  TensorMap kv;  // (n_blocks * 2 * n_kv_heads * block_size, head_dim)
  AttentionParams attention;
};

struct MergeParams {
  const float* states;  // (n_kv_heads, n_states, head_dim + 2)
  int64_t n_states;
  const AttentionQuery* queries;
  const int32_t* split_queries;    // (*n_split_queries) indices of queries
  const int32_t* n_split_queries;  // in AttentionCounts
  int n_heads;
  int n_kv_heads;
  int head_dim;
  int sliding_window;  // as in AttentionParams
  int after;
  const float* sinks;  // (n_heads), or null
  void* out;           // as in AttentionParams
  int64_t out_stride;
  int out_bf16;
};

// The norm of each q or k head before or after its rotation, or of each v head. A null weight means
// no norm.
struct HeadNorm {
  const float* weight;  // (head_dim)
  const float* bias;    // (head_dim), with layer_norm
  float eps;
  int layer_norm;  // 0: root mean square
};

inline constexpr int kRopePositions = 3;  // per row: kRopeAxes of the host

struct RopeStoreParams {
  float* qkv;                // (n_rows, (n_heads + 2 n_kv_heads) * head_dim); q is rotated in place
  const AttentionRow* rows;  // (*n_rows)
  const int32_t* n_rows;     // in AttentionCounts
  const float* cosines;      // (n_positions, head_dim / 2) for k; null: no rotation
  const float* sines;        // (n_positions, head_dim / 2)
  const float* q_cosines;    // the same for q
  const float* q_sines;
  // (head_dim / 2): pair i is rotated by the position rope_positions[row, axes[i]]. Null: every
  // pair is rotated by the row's position.
  const int32_t* axes = nullptr;
  const int32_t* rope_positions = nullptr;  // (*n_rows, kRopePositions)
  HeadNorm q_norm;
  HeadNorm k_norm;
  HeadNorm v_norm;
  int norms_last;  // 1: q and k are normed after their rotation
  int n_heads;
  int n_computed;  // the number of q, k and v heads, or of q heads alone
  KvLayer kv;
};

struct CopyBlockParams {
  unsigned char* data;  // (n_layers, n_blocks, block_bytes)
  int64_t block_bytes;
  int n_blocks;
  int from;
  int to;
};

inline constexpr int kLargestPaddedDim = 512;
inline constexpr int kTileThreads = 128;
// The number of small-tile blocks that share a multiprocessor. Small tiles mostly wait for keys and
// values, so that several blocks overlap their copies with each other's computation.
PB_HOST_DEVICE constexpr int small_tiles_at_once(int padded_dim) {
  return padded_dim > 128 ? 1 : 4;
}
// The kernels with tensor maps (attention_tma.cuh) have kTmaGroups warpgroups of kTmaQueries
// queries each, one warpgroup that copies keys and values, and kTmaAttentionStages stages each for
// keys and for values.
inline constexpr int kTmaGroups = 2;
inline constexpr int kTmaQueries = 64;
inline constexpr int kTmaAttentionThreads = 128 * (kTmaGroups + 1);
inline constexpr int kTmaAttentionStages = 4;
inline constexpr int kRopeThreads = 128;
inline constexpr int kCopyBlockThreads = 256;
// Warps share the columns of a large tile's values: one holds at most 128 of them.
PB_HOST_DEVICE constexpr int large_tile_threads(int padded_dim) {
  return padded_dim > 128 ? 256 : 128;
}

// The kernels for f32: number of threads, each with two columns of the values, and positions at a
// time.
PB_HOST_DEVICE constexpr int f32_threads(bool wide) { return wide ? 256 : 128; }
PB_HOST_DEVICE constexpr int f32_chunk(bool wide) { return wide ? 16 : 64; }

}  // namespace pb::cuda
