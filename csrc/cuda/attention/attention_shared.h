// The arrays of the attention kernels in dynamic shared memory.
#pragma once

#include <cstdint>

#include "cuda/attention/params_attention.h"
#include "cuda/device_code/shared_bytes.h"

namespace pb::cuda {

// Returns the numbers per row of 16-bit numbers in shared memory. With the padding, a read of eight
// rows by eight lanes touches eight different banks.
PB_HOST_DEVICE constexpr int padded_stride(int padded_dim) { return padded_dim + 8; }

// The arrays of a tile kernel. head_dim is padded to padded_dim, a row of 16-bit numbers to
// padded_stride.
struct SharedTile {
  // (queries, padded_dim) in an order private to the lanes; null for wide heads
  float* totals;
  uint16_t* q;         // (queries, padded_stride)
  uint16_t* keys;      // (chunk, padded_stride)
  uint16_t* values;    // (chunk, padded_stride); for int8 equal to keys, which is used in turns
  int8_t* raw_keys;    // (chunk, padded_dim); this and the following ones are for int8 only
  int8_t* raw_values;  // (chunk, padded_dim)
  float* key_scales;   // (chunk)
  float* value_scales;
};

template <typename Arrays>
PB_HOST_DEVICE constexpr SharedTile take_tile(Arrays& arrays, int queries, int padded_dim,
                                              bool int8) {
  const auto stride = static_cast<size_t>(padded_stride(padded_dim));
  const auto dim = static_cast<size_t>(padded_dim);
  const auto n_queries = static_cast<size_t>(queries);
  const auto n_positions = static_cast<size_t>(chunk_of(padded_dim));
  SharedTile tile{};
  if (!is_wide(padded_dim)) tile.totals = arrays.template take<float>(n_queries * dim);
  tile.q = arrays.template take<uint16_t>(n_queries * stride);
  tile.keys = arrays.template take<uint16_t>(n_positions * stride);
  if (!int8) {
    tile.values = arrays.template take<uint16_t>(n_positions * stride);
    return tile;
  }
  tile.values = tile.keys;
  tile.raw_keys = arrays.template take<int8_t>(n_positions * dim);
  tile.raw_values = arrays.template take<int8_t>(n_positions * dim);
  tile.key_scales = arrays.template take<float>(n_positions);
  tile.value_scales = arrays.template take<float>(n_positions);
  return tile;
}

// The arrays of a kernel that copies keys and values by a tensor map (attention_tma.cuh): swizzled
// tiles whose rows have 64 numbers of 16 bits. The tiles of later columns follow those of earlier
// ones.
struct SharedTmaTiles {
  unsigned char* q;       // (kTmaGroups, padded_dim / 64, kTmaQueries, 64)
  unsigned char* stages;  // (2 kTmaAttentionStages, padded_dim / 64, chunk, 64): keys, values
  float* totals;          // (padded_dim / 2, kTmaGroups * 128): a column for each thread
  uint64_t* full;         // (2 kTmaAttentionStages) barriers
  uint64_t* empty;        // (2 kTmaAttentionStages) barriers
  uint64_t* landed;       // barrier of a copy that the copying warp itself waits for
  uint64_t* queries;      // (kTmaGroups) barriers of the warps of a warpgroup
};

template <typename Arrays>
PB_HOST_DEVICE constexpr SharedTmaTiles take_tma_tiles(Arrays& arrays, int padded_dim) {
  constexpr size_t kAlignment = 1024;  // alignment of tiles
  const auto dim = static_cast<size_t>(padded_dim);
  const auto chunk = static_cast<size_t>(chunk_of(padded_dim));
  SharedTmaTiles tiles{};
  tiles.q = arrays.template take<unsigned char>(kTmaGroups * kTmaQueries * dim * 2, kAlignment);
  tiles.stages =
      arrays.template take<unsigned char>(2 * kTmaAttentionStages * chunk * dim * 2, kAlignment);
  tiles.totals = arrays.template take<float>(dim / 2 * kTmaGroups * 128);
  tiles.full = arrays.template take<uint64_t>(2 * kTmaAttentionStages);
  tiles.empty = arrays.template take<uint64_t>(2 * kTmaAttentionStages);
  tiles.landed = arrays.template take<uint64_t>(1);
  tiles.queries = arrays.template take<uint64_t>(kTmaGroups);
  return tiles;
}

// The factors that a merge multiplies a query's total and its new state by.
struct MergeFactors {
  float total;
  float part;
};

// The arrays of a kernel for f32.
struct SharedF32 {
  float* q;       // (kSmallTile, head_dim)
  float* keys;    // (chunk, head_dim + 1): neighbouring positions are in different banks
  float* scores;  // (kSmallTile, kSegment), then weights
  // The following arrays are (kSmallTile) each.
  float* greatest;        // of the segment
  float* sum;             // of the segment
  float* total_greatest;  // of the segment and all segments before it
  float* total_sum;
  MergeFactors* factors;
  int* begin;  // the range that a query sees
  int* end;
};

template <typename Arrays>
PB_HOST_DEVICE constexpr SharedF32 take_f32(Arrays& arrays, int head_dim, bool wide) {
  const auto dim = static_cast<size_t>(head_dim);
  constexpr size_t kQueries = kSmallTile;
  SharedF32 shared{};
  shared.q = arrays.template take<float>(kQueries * dim);
  shared.keys = arrays.template take<float>(static_cast<size_t>(f32_chunk(wide)) * (dim + 1));
  shared.scores = arrays.template take<float>(kQueries * kSegment);
  shared.greatest = arrays.template take<float>(kQueries);
  shared.sum = arrays.template take<float>(kQueries);
  shared.total_greatest = arrays.template take<float>(kQueries);
  shared.total_sum = arrays.template take<float>(kQueries);
  shared.factors = arrays.template take<MergeFactors>(kQueries);
  shared.begin = arrays.template take<int>(kQueries);
  shared.end = arrays.template take<int>(kQueries);
  return shared;
}

}  // namespace pb::cuda
