// What the attention kernels keep in dynamic shared memory.
#pragma once

#include <cstdint>

#include "cuda/attention/params_attention.h"
#include "cuda/device_code/shared_bytes.h"

namespace pb::cuda {

// Numbers of a row of 16 bits in shared memory: what eight lanes read of eight rows lies in
// different banks.
PB_HOST_DEVICE constexpr int padded_stride(int padded_dim) { return padded_dim + 8; }

// Of a tile kernel. head_dim is padded to padded_dim, a row of 16 bits to padded_stride.
struct SharedTile {
  float* totals;       // (queries, padded_dim), in an order of the lanes' own; none of wide heads
  uint16_t* q;         // (queries, padded_stride)
  uint16_t* keys;      // (chunk, padded_stride)
  uint16_t* values;    // likewise; of int8 the same array, in which they take turns
  int8_t* raw_keys;    // (chunk, padded_dim), of int8 alone, as what follows
  int8_t* raw_values;  // likewise
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

// Of a kernel whose keys and values are copied by a tensor map (attention_tma.cuh): tiles of rows
// of 64 numbers of 16 bits, swizzled, those of the later columns behind those of the first ones.
struct SharedTmaTiles {
  unsigned char* q;       // (kTmaGroups, padded_dim / 64, kTmaQueries, 64)
  unsigned char* stages;  // (2 kTmaAttentionStages, padded_dim / 64, chunk, 64): keys, values
  float* totals;          // (padded_dim / 2, kTmaGroups * 128): those of each thread
  uint64_t* full;         // (2 kTmaAttentionStages) barriers
  uint64_t* empty;        // likewise
  uint64_t* landed;       // of a copy that its warp waits for
  uint64_t* queries;      // (kTmaGroups): of the warps of a warpgroup
};

template <typename Arrays>
PB_HOST_DEVICE constexpr SharedTmaTiles take_tma_tiles(Arrays& arrays, int padded_dim) {
  constexpr size_t kAlignment = 1024;  // where tiles begin
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

// What states of a query and its total are multiplied by when they are merged.
struct MergeFactors {
  float total;
  float part;
};

// Of a kernel for f32.
struct SharedF32 {
  float* q;       // (kSmallTile, head_dim)
  float* keys;    // (chunk, head_dim + 1): neighbours in position lie in different banks
  float* scores;  // (kSmallTile, kSegment), then weights
  // (kSmallTile) each:
  float* greatest;        // of the segment
  float* sum;             // likewise
  float* total_greatest;  // of it and all segments before it
  float* total_sum;
  MergeFactors* factors;
  int* begin;  // what a query sees
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
