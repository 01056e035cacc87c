// Copies of keys and values from their KV blocks to shared memory by a tensor map, for
// attention_tma.cuh: the tiles, the order in which blocks process items, and the warp that issues
// the copies.
#pragma once

#include "cuda/attention/attention_items.cuh"
#include "cuda/device_code/ring.cuh"
#include "cuda/device_code/swizzle.h"

namespace pb::cuda {
namespace {

#ifdef PB_HAS_WGMMA

// A warpgroup's share of a tile.
template <typename Kv_, int kPaddedDim>
struct TmaTile {
  using Kv = Kv_;
  static constexpr int kDim = kPaddedDim;
  static constexpr int kChunk = chunk_of(kDim);
  static constexpr int kQueries = kTmaQueries;
  static constexpr int kColumns = kDim;
  static constexpr int kColumnTiles = kDim / 8;
  static constexpr int kThreads = kTmaGroups * 128;  // of both warpgroups
  static constexpr bool kTotalsInRegisters = false;
  static constexpr bool kDecideTogether = true;  // a wgmma product spans the whole warpgroup
  static constexpr int kParts = kDim / 64;       // parts of 64 columns
  static constexpr int kPartBytes = kChunk * 128;
  static constexpr int kBytes = kParts * kPartBytes;
  static_assert(kDim % 64 == 0 && kChunk == 64 && kQueries == kChunk && !Kv::kScaled);

  // Returns the offset in bytes of number `column` of a row; `column` is a multiple of 8.
  static __device__ __forceinline__ int byte_of(int row, int column) {
    return column / 64 * kPartBytes + swizzled<128>(row, column % 64 / 8);
  }
  static __device__ __forceinline__ const uint16_t* number(const uint16_t* tile, int row,
                                                           int column) {
    return tile + byte_of(row, column) / 2 + column % 8;
  }
};

// A block's unit of work: number i is item i / n_kv_heads for kv head i % n_kv_heads.
struct Turn {
  int number;

  __device__ __forceinline__ const AttentionItem& item(const AttentionParams& p) const {
    return p.items[number / p.kv.n_kv_heads];
  }
  __device__ __forceinline__ int kv_head(const AttentionParams& p) const {
    return number % p.kv.n_kv_heads;
  }
};

// Calls take(turn) for each of the block's turns that sees at least one position. Items are sorted
// longest first, so every second round goes in the opposite direction to balance the blocks.
template <typename Take>
__device__ __forceinline__ void for_each_turn(const AttentionParams& p, Take take) {
  for (int round = 0;; ++round) {
    const auto n_blocks = static_cast<int>(gridDim.x);
    const auto block = static_cast<int>(blockIdx.x);
    const int n = *p.n_items * p.kv.n_kv_heads;
    if (round * n_blocks >= n) return;
    const Turn turn{round * n_blocks + (round % 2 == 0 ? block : n_blocks - 1 - block)};
    if (turn.number >= n) continue;
    const ItemRange range(p, turn.item(p));
    if (range.begin < range.end) take(turn);
  }
}

// Issues the copies of keys and values. Run by one warp.
template <typename Tile>
class KvCopies {
 public:
  __device__ __forceinline__ KvCopies(const TmaAttentionParams& params,
                                      const SharedTmaTiles& shared)
      : map_(params.kv), p_(params.attention), kv_(params.attention.kv), shared_(shared) {
    lane_ = static_cast<int>(threadIdx.x) % 32;
    box_shift_ = kv_.block_shift < kChunkShift ? kv_.block_shift : kChunkShift;
  }

  __device__ __forceinline__ void copy(const Turn& turn) {
    const ItemRange range(p_, turn.item(p_));
    const int32_t* const block_table = p_.block_tables + turn.item(p_).block_table;
    const int kv_head = turn.kv_head(p_);
    const int end_chunk = (range.end + Tile::kChunk - 1) / Tile::kChunk;
    int chunk = range.begin / Tile::kChunk;
    int block = block_of(range, block_table, chunk);
    for (; chunk < end_chunk; ++chunk) {
      const int next = block_of(range, block_table, chunk + 1);  // loaded before it is needed
      copy(range, chunk, block, kv_head, false);
      copy(range, chunk, block, kv_head, true);
      block = next;
    }
  }

 private:
  static constexpr int kChunkShift = 6;
  static_assert(Tile::kChunk == 1 << kChunkShift);

  // Returns the first position of the lane's box of the chunk.
  __device__ __forceinline__ int position_of(int chunk) const {
    return chunk * Tile::kChunk + (lane_ << box_shift_);
  }
  __device__ __forceinline__ bool is_seen(const ItemRange& range, int position) const {
    return lane_ < Tile::kChunk >> box_shift_ && position < range.end &&
           position + (1 << box_shift_) > range.begin;
  }
  __device__ __forceinline__ int block_of(const ItemRange& range, const int32_t* block_table,
                                          int chunk) const {
    const int position = position_of(chunk);
    return is_seen(range, position) ? block_table[position >> kv_.block_shift] : 0;
  }

  __device__ __forceinline__ void copy(const ItemRange& range, int chunk, int block, int kv_head,
                                       bool value) {
    const int first = chunk * Tile::kChunk;
    const int from = range.begin > first ? range.begin : first;
    const int until = range.end < first + Tile::kChunk ? range.end : first + Tile::kChunk;
    // Values that no query sees have to be zero; keys may be anything.
    const bool must_clear = value && until - from < Tile::kChunk;
    const int number = at_.stage + (value ? kTmaAttentionStages : 0);
    unsigned char* const stage = shared_.stages + number * Tile::kBytes;
    uint64_t* const full = shared_.full + number;
    uint64_t* const barrier = must_clear ? shared_.landed : full;
    mbarrier_wait(shared_.empty + number, at_.parity ^ 1);  // returns at once in the first phase
    if (lane_ == 0) {
      const int n_boxes = ((until - 1) >> box_shift_) - (from >> box_shift_) + 1;
      mbarrier_arrive_expect(barrier, static_cast<unsigned>(n_boxes * Tile::kParts * 128)
                                          << box_shift_);
    }
    __syncwarp();
    const int position = position_of(chunk);
    if (is_seen(range, position)) {
      const int slot = position & ((1 << kv_.block_shift) - 1);
      const int row =
          (((2 * block + (value ? 1 : 0)) * kv_.n_kv_heads + kv_head) << kv_.block_shift) + slot;
#pragma unroll
      for (int part = 0; part < Tile::kParts; ++part) {
        unsigned char* const to = stage + part * Tile::kPartBytes + (position - first) * 128;
        tma_copy(to, map_, part * 64, row, barrier);
      }
    }
    if (must_clear) clear(stage, from - first, until - first, full);
    if (value) at_.advance();
  }

  // Waits for the copy, then sets all rows to zero except [from, until).
  __device__ __forceinline__ void clear(unsigned char* stage, int from, int until, uint64_t* full) {
    mbarrier_wait(shared_.landed, landed_parity_);
    landed_parity_ ^= 1;
    for (int i = lane_; i < Tile::kBytes / 16; i += 32) {
      const int row = i % (Tile::kPartBytes / 16) / 8;
      if (row < from || row >= until) reinterpret_cast<uint4*>(stage)[i] = uint4{0, 0, 0, 0};
    }
    fence_for_async_proxy();
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(full);
  }

  const TensorMap& map_;
  const AttentionParams& p_;
  const KvLayer& kv_;
  const SharedTmaTiles& shared_;
  RingPlace<kTmaAttentionStages> at_;
  unsigned landed_parity_ = 0;
  int lane_;
  int box_shift_;  // a box has 1 << box_shift_ rows
};

#endif  // PB_HAS_WGMMA

}  // namespace
}  // namespace pb::cuda
