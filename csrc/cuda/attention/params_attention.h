// What the host tells the kernels of attention: a layer, and the work list of a pass.
//
// The work list is made once a pass and read by every layer. All of it lies at fixed addresses, and
// the kernels read from it how long it is: a captured graph of launches serves every pass.
#pragma once

#include <cstdint>

#include "cuda/device_code/shared_bytes.h"
#include "cuda/device_code/tensor_map.h"

namespace pb::cuda {

inline constexpr int kSegment = 256;  // positions of a softmax state, cut by absolute position
inline constexpr int kSmallTile = 16;

// By padded head size. The widest heads have tiles that go into the 99 KiB of shared memory that a
// block has on any GPU: fewer positions at a time, fewer queries, and totals in registers.
PB_HOST_DEVICE constexpr bool is_wide(int padded_dim) { return padded_dim > 256; }
// Positions in shared memory at a time; divides kSegment. Part of the order of sums.
PB_HOST_DEVICE constexpr int chunk_of(int padded_dim) { return is_wide(padded_dim) ? 32 : 64; }
PB_HOST_DEVICE constexpr int large_tile_of(int padded_dim) { return is_wide(padded_dim) ? 32 : 64; }

// One row of the batch. slot: KV block * block_size + place in it.
struct AttentionRow {
  int32_t position;
  int32_t slot;
};

// One q head of one row, for every kv head.
struct AttentionQuery {
  int32_t row;
  int32_t head;         // of the q heads that share a kv head
  int32_t end;          // behind its own position
  int32_t limit;        // behind the last position that its sequence has in the pass
  int32_t first_state;  // its state of segment s is number first_state + s, where it is split
};

// Up to 16 (small) or so many as large_tile() says (large) queries over one range of positions, in
// the same KV blocks.
struct AttentionItem {
  int32_t first_query;
  int32_t n_queries;
  int32_t block_table;  // where it begins among block_tables
  int32_t first_segment;
  int32_t end_segment;
  int32_t min_end;  // least and greatest AttentionQuery::end of its queries
  int32_t max_end;
  int32_t limit;  // the greatest AttentionQuery::limit
  int32_t
      split;  // 1: states are written, to be merged later; 0: all segments are here, merged here
};

struct AttentionCounts {
  int32_t n_rows;
  int32_t n_small_items;
  int32_t n_large_items;
  int32_t n_split_queries;
};

// Keys and values of one layer; block_size is 1 << block_shift.
struct KvLayer {
  void* numbers;  // (n_blocks, 2, n_kv_heads, block_size, head_dim): keys, then values
  float* scales;  // (n_blocks, 2, n_kv_heads, block_size) of int8; else null
  int n_kv_heads;
  int block_shift;
  int head_dim;
};

struct AttentionParams {
  const float* qkv;  // (n_rows, (n_heads + 2 n_kv_heads) * head_dim)
  KvLayer kv;
  int n_heads;
  int sliding_window;  // positions that a query sees up to its own; 0 = all
  int after;           // positions behind its own that it sees at most: those of its sequence
  float scale;         // of scores
  float softcap;       // of scores times the scale; 0 = none
  const float* sinks;  // (n_heads), or null
  const AttentionQuery* queries;
  const AttentionItem* items;   // (*n_items)
  const int32_t* n_items;       // of AttentionCounts
  const int32_t* block_tables;  // those of all sequences, one after the other
  float* states;                // (n_kv_heads, n_states, head_dim + 2)
  int64_t n_states;
  void* out;           // (max_rows, out_stride) f32 or bf16: n_heads * head_dim of them are written
  int64_t out_stride;  // numbers
  int out_bf16;
  // (*n_items, n_kv_heads), zero at first: what the kernel by a map has left to the one on mma.sync
  // becomes 1, and 0 when that one has seen it. Null where that one is launched alone.
  int32_t* left;
};

// Of a kernel that has keys and values copied by a map: boxes of up to chunk_of() rows, which are a
// KV block or a part of one, and 64 numbers.
struct TmaAttentionParams {
  TensorMap kv;  // (n_blocks * 2 * n_kv_heads * block_size, head_dim)
  AttentionParams attention;
};

struct MergeParams {
  const float* states;  // (n_kv_heads, n_states, head_dim + 2)
  int64_t n_states;
  const AttentionQuery* queries;
  const int32_t* split_queries;    // (*n_split_queries) places among queries
  const int32_t* n_split_queries;  // of AttentionCounts
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

// Of each q or k head before its rotation, or of each v head. weight == null: none.
struct HeadNorm {
  const float* weight;  // (head_dim)
  const float* bias;    // (head_dim), where layer_norm
  float eps;
  int layer_norm;  // 0: root mean square
};

struct RopeStoreParams {
  float* qkv;                // (n_rows, (n_heads + 2 n_kv_heads) * head_dim): q is rotated in place
  const AttentionRow* rows;  // (*n_rows)
  const int32_t* n_rows;     // of AttentionCounts
  const float* cosines;      // (n_positions, head_dim / 2), of k; or null: no rotation
  const float* sines;        // likewise
  const float* q_cosines;    // likewise, of q
  const float* q_sines;
  HeadNorm q_norm;
  HeadNorm k_norm;
  HeadNorm v_norm;
  int n_heads;
  int n_computed;  // heads of q, k and v; or those of q alone
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
// Blocks of small tiles that share a multiprocessor: they do little else than wait for keys and
// values, of which those of some are on their way while others compute.
PB_HOST_DEVICE constexpr int small_tiles_at_once(int padded_dim) {
  return padded_dim > 128 ? 1 : 4;
}
// Kernels by tensor maps (attention_tma.cuh): warpgroups, each of so many queries of a tile, and
// one that has keys and values copied; stages for keys, and as many for values.
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

// Of the kernels for f32: threads, each with two columns of the values, and positions at a time.
PB_HOST_DEVICE constexpr int f32_threads(bool wide) { return wide ? 256 : 128; }
PB_HOST_DEVICE constexpr int f32_chunk(bool wide) { return wide ? 16 : 64; }

}  // namespace pb::cuda
