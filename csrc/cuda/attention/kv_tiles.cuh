// Copies of keys and values from their KV blocks to shared memory, one chunk of positions at a
// time.
//
// One copy is always under way while earlier data is multiplied: values while scores are computed
// from keys, and the next keys while values are added. int8 is copied unchanged and expanded to
// bf16 in one tile, which keys and values use in turn.
#pragma once

#include "cuda/attention/attention_shared.h"
#include "cuda/attention/kv_numbers.cuh"

namespace pb::cuda {
namespace {

// A shape of tile kernels. A tile has 16 kWarpsM queries. The kWarpsN warps of a query share the
// columns of its values, and each of them computes all of its scores.
template <typename Kv_, int kPaddedDim, int kWarpsM_, int kWarpsN_>
struct Tile {
  using Kv = Kv_;
  static constexpr int kDim = kPaddedDim;
  static constexpr int kChunk = chunk_of(kDim);
  static constexpr bool kTotalsInRegisters = is_wide(kDim);
  // Unrolls the loops that load queries, copy, and compute scores. Larger tiles would spill
  // registers.
  static constexpr bool kMuchUnrolled = kWarpsM_ > 1 && kDim <= 128;
  static constexpr int kUnrolled = kMuchUnrolled ? 2 : 1;
  static constexpr int kUnrolledCopies = kMuchUnrolled ? 4 : 1;
  static constexpr int kUnrolledScores = kMuchUnrolled ? 8 : 1;
  // True if lanes hold the KV block numbers of a chunk in registers, for tiles that have enough of
  // them.
  static constexpr bool kHoldsBlocks = kMuchUnrolled || (kWarpsM_ == 1 && !kTotalsInRegisters);
  static constexpr int kWarpsM = kWarpsM_;
  static constexpr int kWarpsN = kWarpsN_;
  static constexpr int kQueries = 16 * kWarpsM;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStride = padded_stride(kDim);
  static constexpr int kColumns = kDim / kWarpsN;
  static constexpr int kColumnTiles = kColumns / 8;
  static constexpr bool kDecideTogether = false;
  // Returns the address of number `column` of a key or value in shared memory.
  static __device__ __forceinline__ const uint16_t* number(const uint16_t* tile, int position,
                                                           int column) {
    return tile + position * kStride + column;
  }
  static_assert(kSegment % kChunk == 0);
  static_assert(kDim % 16 == 0 && kColumns % 8 == 0 && kThreads >= 2 * kChunk);
};

// The keys and values of one sequence and kv head, and the range of positions that the tile sees.
template <typename Tile>
class KvTiles {
 public:
  using Number = typename Tile::Kv::Number;
  static constexpr int kChunk = Tile::kChunk;

  __device__ __forceinline__ KvTiles(const KvLayer& kv, const int32_t* block_table, int kv_head,
                                     int begin, int end, const SharedTile& shared)
      : shared_(shared),
        block_table_(block_table),
        begin_(begin),
        end_(end),
        block_shift_(kv.block_shift),
        head_dim_(kv.head_dim) {
    value_rows_ = kv.n_kv_heads << kv.block_shift;
    const int64_t first_row = static_cast<int64_t>(kv_head) << kv.block_shift;
    numbers_ = static_cast<const Number*>(kv.numbers) + first_row * head_dim_;
    if constexpr (Tile::Kv::kScaled) scales_ = kv.scales + first_row;
  }

  // Starts the copies of the first chunk.
  __device__ __forceinline__ void start(int chunk) {
    read_blocks(chunk);
    copy_keys(chunk);
    cp_async_commit();
    if constexpr (Tile::Kv::kScaled) {
      copy_values(chunk);
      cp_async_commit();
      scale_ = read_scale(chunk);
    }
  }

  // Waits until the chunk's keys and all its scales are in shared memory and no thread reads older
  // ones, then starts the next copies.
  __device__ __forceinline__ void take_keys(int chunk, int end_chunk) {
    if constexpr (Tile::Kv::kScaled) {
      cp_async_wait<1>();
      const int thread = static_cast<int>(threadIdx.x);
      if (thread < kChunk) {
        shared_.key_scales[thread] = scale_;
      } else if (thread < 2 * kChunk) {
        shared_.value_scales[thread - kChunk] = scale_;
      }
      __syncthreads();
      expand(shared_.raw_keys);
      __syncthreads();
      if (chunk + 1 < end_chunk) {
        copy_keys(chunk + 1);
        scale_ = read_scale(chunk + 1);
      }
    } else {
      cp_async_wait<0>();
      __syncthreads();
      copy_values(chunk);
    }
    cp_async_commit();
  }

  // Waits until the chunk's values are in shared memory and no thread reads its keys, then starts
  // the next copies.
  __device__ __forceinline__ void take_values(int chunk, int end_chunk) {
    if constexpr (Tile::Kv::kScaled) {
      cp_async_wait<1>();
      __syncthreads();
      expand(shared_.raw_values);
      __syncthreads();
      if (chunk + 1 < end_chunk) copy_values(chunk + 1);
    } else {
      cp_async_wait<0>();
      __syncthreads();
      if (chunk + 1 < end_chunk) copy_keys(chunk + 1);
    }
    cp_async_commit();
  }

  // Ends the loop after the last chunk: no copy is under way, and shared memory may be reused.
  __device__ __forceinline__ void finish() {
    cp_async_wait<0>();
    __syncthreads();
  }

 private:
  // Returns the row of a position's key or value, counted from the kv head's first row.
  __device__ __forceinline__ int64_t row_of(int position, bool value) const {
    const int64_t block = block_table_[position >> block_shift_];
    return (2 * block + (value ? 1 : 0)) * value_rows_ + slot_of(position);
  }
  __device__ __forceinline__ int slot_of(int position) const {
    return position & ((1 << block_shift_) - 1);
  }

  // Loads the KV block numbers of a chunk, long before its copies begin.
  __device__ __forceinline__ void read_blocks(int chunk) {
    if constexpr (Tile::kHoldsBlocks) {
#pragma unroll
      for (int i = 0; i < kBlocksHeld; ++i) {
        const int position = chunk * kChunk + i * 32 + static_cast<int>(threadIdx.x) % 32;
        const bool seen = position >= begin_ && position < end_;
        blocks_[i] = seen ? block_table_[position >> block_shift_] : 0;
      }
    }
  }
  // Returns the KV block of position `at` of the chunk, or 0 if no query sees it. Called by all
  // lanes of a warp.
  __device__ __forceinline__ int block_of(int at) const {
    int block = __shfl_sync(0xffffffffu, blocks_[0], at % 32);
    if constexpr (kBlocksHeld == 2) {
      const int later = __shfl_sync(0xffffffffu, blocks_[1], at % 32);
      if (at >= 32) block = later;
    }
    return block;
  }

  // Copies the keys of a chunk. Each chunk's keys are copied before its values.
  __device__ __forceinline__ void copy_keys(int chunk) {
    if constexpr (Tile::Kv::kScaled) {
      copy<Tile::kDim>(chunk, false, shared_.raw_keys);
    } else {
      copy<Tile::kStride>(chunk, false, shared_.keys);
    }
  }
  __device__ __forceinline__ void copy_values(int chunk) {
    if constexpr (Tile::Kv::kScaled) {
      copy<Tile::kDim>(chunk, true, shared_.raw_values);
    } else {
      copy<Tile::kStride>(chunk, true, shared_.values);
    }
    read_blocks(chunk + 1);
  }

  // Copies a chunk of keys or values. Positions that no query sees are not read, because their KV
  // blocks may not exist, and become zero.
  template <int kStride>
  __device__ __forceinline__ void copy(int chunk, bool value, Number* to) {
    constexpr int kPerPiece = 16 / static_cast<int>(sizeof(Number));
    constexpr int kPieces = Tile::kDim / kPerPiece;  // per row
    const int thread = static_cast<int>(threadIdx.x);
    const int first = chunk * kChunk;
    if (head_dim_ % kPerPiece == 0) {
      constexpr int kTurns = kChunk * kPieces / Tile::kThreads;
      static_assert(kChunk * kPieces % Tile::kThreads == 0);  // no lane is idle
      constexpr bool kSamePiece = Tile::kThreads % kPieces == 0;
      // The numbers of a KV block in a layer; they fit into an int.
      const int of_block = 2 * value_rows_ * head_dim_;
      const Number* const begin = numbers_ + (value ? value_rows_ * head_dim_ : 0);
#pragma unroll kSamePiece ? Tile::kUnrolledCopies : Tile::kUnrolled
      for (int turn = 0; turn < kTurns; ++turn) {
        // If the threads cover whole rows, a thread copies the same piece of a row in each turn.
        const int i = thread + turn * Tile::kThreads;
        const int at =
            kSamePiece ? thread / kPieces + turn * (Tile::kThreads / kPieces) : i / kPieces;
        const int d = (kSamePiece ? thread : i) % kPieces * kPerPiece;
        const int position = first + at;
        const bool seen = position >= begin_ && position < end_ && d < head_dim_;
        const Number* from = numbers_;
        if constexpr (Tile::kHoldsBlocks) {
          from = begin + int64_t{block_of(at)} * of_block + (slot_of(position) * head_dim_ + d);
        } else if (seen) {
          from += row_of(position, value) * head_dim_ + d;
        }
        cp_async_16(to + at * kStride + d, from, seen ? 16 : 0);
      }
      return;
    }
#pragma unroll 1
    for (int i = thread; i < kChunk * Tile::kDim; i += Tile::kThreads) {  // only in tiny models
      const int position = first + i / Tile::kDim;
      const int d = i % Tile::kDim;
      const bool seen = position >= begin_ && position < end_ && d < head_dim_;
      to[i / Tile::kDim * kStride + d] =
          seen ? numbers_[row_of(position, value) * head_dim_ + d] : Number{};
    }
  }

  // Loads one scale: thread t loads a key's scale if t < kChunk, else a value's scale.
  __device__ __forceinline__ float read_scale(int chunk) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int position = chunk * kChunk + thread % kChunk;
    if (thread >= 2 * kChunk || position < begin_ || position >= end_) return 0.0f;
    return scales_[row_of(position, thread >= kChunk)];
  }

  __device__ __forceinline__ void expand(const int8_t* raw) {
    constexpr int kWords = Tile::kDim / 4;  // per row
    const auto* words = reinterpret_cast<const unsigned*>(raw);
    [[maybe_unused]] constexpr int kUnrolled = Tile::kTotalsInRegisters ? 1 : 4;
#pragma unroll kUnrolled
    for (int i = static_cast<int>(threadIdx.x); i < kChunk * kWords; i += Tile::kThreads) {
      const unsigned word = words[i];
      uint2 numbers;
      numbers.x = pack_bf16(int8_of(word, 0), int8_of(word, 1));
      numbers.y = pack_bf16(int8_of(word, 2), int8_of(word, 3));
      uint16_t* to = shared_.keys + i / kWords * Tile::kStride + i % kWords * 4;
      *reinterpret_cast<uint2*>(to) = numbers;
    }
  }

  // Each lane holds the KV block of one position per 32 of the chunk. Without this, each copy would
  // first wait for a load from the block table.
  static constexpr int kBlocksHeld = kChunk / 32;

  const SharedTile& shared_;
  const Number* numbers_;  // from the kv head's first row on, like scales_
  const float* scales_;
  const int32_t* block_table_;
  int value_rows_;  // number of rows from a KV block's keys to its values
  int begin_;
  int end_;
  int block_shift_;
  int head_dim_;
  float scale_ = 0.0f;  // of the next chunk, until take_keys() stores it
  int blocks_[kBlocksHeld];
};

}  // namespace
}  // namespace pb::cuda
