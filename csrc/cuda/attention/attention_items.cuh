// Attention over a paged KV cache on tensor cores: how a block processes its work list.
#pragma once

#include "cuda/attention/attention_tile.cuh"
#include "cuda/device_code/wgmma.h"

namespace pb::cuda {
namespace {

// The positions [begin, end) of an item that at least one of its queries sees.
struct ItemRange {
  int begin;
  int end;

  __device__ __forceinline__ ItemRange(const AttentionParams& p, const AttentionItem& item) {
    const int first = begin_of(item.min_end, p.sliding_window);
    const int item_begin = item.first_segment * kSegment;
    const int item_end = item.end_segment * kSegment;
    begin = first > item_begin ? first : item_begin;
    const int seen_end = end_of(item.max_end, item.limit, p.after);
    end = seen_end < item_end ? seen_end : item_end;
  }
};

// Writes the item's queries, multiplied by the scale and rounded once, to q (kQueries, kStride) in
// shared memory.
template <typename Tile>
__device__ __forceinline__ void load_queries(const AttentionParams& p, const AttentionItem& item,
                                             int kv_head, uint16_t* q) {
  constexpr int kPairs = Tile::kDim / 2;
  const int group = p.n_heads / p.kv.n_kv_heads;
  const int64_t row_size = static_cast<int64_t>(p.n_heads + 2 * p.kv.n_kv_heads) * p.kv.head_dim;
#pragma unroll Tile::kUnrolled
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kQueries * kPairs; i += Tile::kThreads) {
    const int at = i / kPairs;
    const int d = i % kPairs * 2;
    unsigned pair = 0;
    if (at < item.n_queries && d < p.kv.head_dim) {
      const AttentionQuery query = p.queries[item.first_query + at];
      const float* from =
          p.qkv + query.row * row_size + (kv_head * group + query.head) * p.kv.head_dim + d;
      pair = Tile::Kv::pack(from[0] * p.scale, from[1] * p.scale);
    }
    *reinterpret_cast<unsigned*>(q + at * Tile::kStride + d) = pair;
  }
}

template <typename Tile>
__device__ __forceinline__ void attend_item(const AttentionParams& p, const AttentionItem& item,
                                            int kv_head, const SharedTile& shared) {
  constexpr int kChunk = Tile::kChunk;
  const auto [begin, end] = ItemRange(p, item);
  if (begin >= end) return;

  WarpTile<Tile> warp;
  const int number = static_cast<int>(threadIdx.x) / 32;
  warp.lane = static_cast<int>(threadIdx.x) % 32;
  warp.first_query = number / Tile::kWarpsN * 16;
  warp.first_column = number % Tile::kWarpsN * Tile::kColumns;
  warp.find_queries(p, item);
  warp.begin_total(shared.totals);
  warp.begin_segment();

  const int end_chunk = (end + kChunk - 1) / kChunk;
  KvTiles<Tile> kv(p.kv, p.block_tables + item.block_table, kv_head, begin, end, shared);
  kv.start(begin / kChunk);
  load_queries<Tile>(p, item, kv_head, shared.q);
  for (int chunk = begin / kChunk; chunk < end_chunk; ++chunk) {
    const bool seen = warp.any_begin < (chunk + 1) * kChunk && warp.any_end > chunk * kChunk;
    kv.take_keys(chunk, end_chunk);
    if (seen) {
      warp.make_scores(shared.q, shared.keys);
      warp.scale_scores(p.softcap, shared);
      warp.make_weights(chunk, shared);
    }
    kv.take_values(chunk, end_chunk);
    if (seen) {
      if (warp.must_add_alone(chunk, begin, end, shared.values)) {
        warp.add_values_alone(chunk, shared.values);
      } else {
        warp.add_values(shared.values);
      }
    }
    if ((chunk + 1) * kChunk % kSegment == 0 || chunk + 1 == end_chunk) {
      warp.end_segment(p, item, kv_head, chunk * kChunk / kSegment);
      warp.begin_segment();
    }
  }
  if (item.split == 0) warp.store(p, item, kv_head);
  kv.finish();
}

// True if attention_tma.cuh has a tensor-map kernel for the same type and head size.
#ifdef PB_HAS_WGMMA
template <typename Tile>
constexpr bool kIsSecond =
    Tile::kWarpsM > 1 && !Tile::Kv::kScaled && (Tile::kDim == 64 || Tile::kDim == 128);
#else
template <typename Tile>
constexpr bool kIsSecond = false;
#endif

// Attends to item number i / n_kv_heads for kv head i % n_kv_heads. Where a tensor-map kernel
// exists, the items are planned for its larger tiles. This kernel then cuts an item into several
// tiles, and takes either all items or only the items that the tensor-map kernel has left.
template <typename Tile>
__device__ __forceinline__ void attend_planned(const AttentionParams& p, int i,
                                               const SharedTile& shared) {
  if constexpr (!kIsSecond<Tile>) {
    attend_item<Tile>(p, p.items[i / p.kv.n_kv_heads], i % p.kv.n_kv_heads, shared);
    return;
  }
  if (p.left != nullptr) {
    if (p.left[i] == 0) return;
    __syncthreads();  // All threads have read p.left[i].
    if (threadIdx.x == 0) p.left[i] = 0;
  }
  AttentionItem item = p.items[i / p.kv.n_kv_heads];
  const int n_queries = item.n_queries;
  for (int done = 0; done < n_queries; done += Tile::kQueries) {
    item.n_queries = n_queries - done < Tile::kQueries ? n_queries - done : Tile::kQueries;
    attend_item<Tile>(p, item, i % p.kv.n_kv_heads, shared);
    item.first_query += Tile::kQueries;
  }
}

// Blocks take items and kv heads in turn, so that the grid depends on the device alone.
template <typename Tile>
__device__ __forceinline__ void attend_items(const AttentionParams& p) {
  SharedArrays arrays;
  const SharedTile shared = take_tile(arrays, Tile::kQueries, Tile::kDim, Tile::Kv::kScaled);
  const int n = *p.n_items * p.kv.n_kv_heads;
  for (int i = static_cast<int>(blockIdx.x); i < n; i += static_cast<int>(gridDim.x)) {
    attend_planned<Tile>(p, i, shared);
  }
}

template <typename Kv, int kDim>
using SmallTile = Tile<Kv, kDim, 1, 4>;
template <typename Kv, int kDim>
using LargeTile =
    Tile<Kv, kDim, large_tile_of(kDim) / 16, large_tile_threads(kDim) / (2 * large_tile_of(kDim))>;

}  // namespace
}  // namespace pb::cuda
