// Keys and values on their way from their KV blocks to shared memory, a chunk of positions at a
// time.
//
// One copy is always under way while what came before it is multiplied: values while scores are
// made of keys, the next keys while values are added up. int8 is copied as it is, and expanded to
// bf16 in one tile, in which keys and values take turns.
#pragma once

#include "cuda/attention/attention_shared.h"
#include "cuda/attention/kv_numbers.cuh"

namespace pb::cuda {
namespace {

// One shape of tile kernels: kWarpsM times 16 queries; the columns of values shared by kWarpsN
// warps, which each make all scores of their queries.
template <typename Kv_, int kPaddedDim, int kWarpsM_, int kWarpsN_>
struct Tile {
  using Kv = Kv_;
  static constexpr int kDim = kPaddedDim;
  static constexpr int kChunk = chunk_of(kDim);
  static constexpr bool kTotalsInRegisters = is_wide(kDim);
  // Of loops that load queries, that copy, and that make scores: with more it spills.
  static constexpr bool kMuchUnrolled = kWarpsM_ > 1 && kDim <= 128;
  static constexpr int kUnrolled = kMuchUnrolled ? 2 : 1;
  static constexpr int kUnrolledCopies = kMuchUnrolled ? 4 : 1;
  static constexpr int kUnrolledScores = kMuchUnrolled ? 8 : 1;
  // Whether lanes hold the KV blocks of a chunk: where there are registers.
  static constexpr bool kHoldsBlocks = kMuchUnrolled || (kWarpsM_ == 1 && !kTotalsInRegisters);
  static constexpr int kWarpsM = kWarpsM_;
  static constexpr int kWarpsN = kWarpsN_;
  static constexpr int kQueries = 16 * kWarpsM;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStride = padded_stride(kDim);
  static constexpr int kColumns = kDim / kWarpsN;
  static constexpr int kColumnTiles = kColumns / 8;
  static constexpr bool kDecideTogether = false;
  // Where number `column` of a key or a value lies in shared memory.
  static __device__ __forceinline__ const uint16_t* number(const uint16_t* tile, int position,
                                                           int column) {
    return tile + position * kStride + column;
  }
  static_assert(kSegment % kChunk == 0);
  static_assert(kDim % 16 == 0 && kColumns % 8 == 0 && kThreads >= 2 * kChunk);
};

// Keys and values of one sequence and kv head, and which of them any query of the tile sees.
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

  // Before the first chunk.
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

  // Until the chunk's keys, and all scales, are in shared memory, and nobody reads older ones.
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

  // Until its values are, and nobody reads its keys.
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

  // After the last chunk: no copy is under way, and shared memory may be used again.
  __device__ __forceinline__ void finish() {
    cp_async_wait<0>();
    __syncthreads();
  }

 private:
  // The row of a position, counted from the kv head's first one: of its key, or of its value.
  __device__ __forceinline__ int64_t row_of(int position, bool value) const {
    const int64_t block = block_table_[position >> block_shift_];
    return (2 * block + (value ? 1 : 0)) * value_rows_ + slot_of(position);
  }
  __device__ __forceinline__ int slot_of(int position) const {
    return position & ((1 << block_shift_) - 1);
  }

  // Loads the KV blocks of a chunk, long before its copies begin.
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
  // The KV block of position `at` of the chunk, 0 where nobody sees it. All lanes of a warp.
  __device__ __forceinline__ int block_of(int at) const {
    int block = __shfl_sync(0xffffffffu, blocks_[0], at % 32);
    if constexpr (kBlocksHeld == 2) {
      const int later = __shfl_sync(0xffffffffu, blocks_[1], at % 32);
      if (at >= 32) block = later;
    }
    return block;
  }

  // Of each chunk its keys, then its values.
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

  // What nobody sees becomes zero, and is not read: its KV block may not be there.
  template <int kStride>
  __device__ __forceinline__ void copy(int chunk, bool value, Number* to) {
    constexpr int kPerPiece = 16 / static_cast<int>(sizeof(Number));
    constexpr int kPieces = Tile::kDim / kPerPiece;  // of a row
    const int thread = static_cast<int>(threadIdx.x);
    const int first = chunk * kChunk;
    if (head_dim_ % kPerPiece == 0) {
      constexpr int kTurns = kChunk * kPieces / Tile::kThreads;
      static_assert(kChunk * kPieces % Tile::kThreads == 0);  // else lanes would be missing
      constexpr bool kSamePiece = Tile::kThreads % kPieces == 0;
      const int of_block = 2 * value_rows_ * head_dim_;  // numbers, of a layer: they fit
      const Number* const begin = numbers_ + (value ? value_rows_ * head_dim_ : 0);
#pragma unroll kSamePiece ? Tile::kUnrolledCopies : Tile::kUnrolled
      for (int turn = 0; turn < kTurns; ++turn) {
        // The thread has the same piece of a row in each turn, if threads are whole rows.
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
    for (int i = thread; i < kChunk * Tile::kDim; i += Tile::kThreads) {  // tiny models only
      const int position = first + i / Tile::kDim;
      const int d = i % Tile::kDim;
      const bool seen = position >= begin_ && position < end_ && d < head_dim_;
      to[i / Tile::kDim * kStride + d] =
          seen ? numbers_[row_of(position, value) * head_dim_ + d] : Number{};
    }
  }

  // Thread t's of the scales of keys (t < kChunk) and values.
  __device__ __forceinline__ float read_scale(int chunk) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int position = chunk * kChunk + thread % kChunk;
    if (thread >= 2 * kChunk || position < begin_ || position >= end_) return 0.0f;
    return scales_[row_of(position, thread >= kChunk)];
  }

  __device__ __forceinline__ void expand(const int8_t* raw) {
    constexpr int kWords = Tile::kDim / 4;  // of a row
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

  // Lanes hold the KV blocks of a chunk, that of one position each: read where they are needed,
  // each copy would wait for the table first.
  static constexpr int kBlocksHeld = kChunk / 32;

  const SharedTile& shared_;
  const Number* numbers_;  // of the kv head's first row, as are scales
  const float* scales_;
  const int32_t* block_table_;
  int value_rows_;  // rows from a KV block's keys to its values
  int begin_;
  int end_;
  int block_shift_;
  int head_dim_;
  float scale_ = 0.0f;  // of the next chunk, until its keys are taken
  int blocks_[kBlocksHeld];
};

}  // namespace
}  // namespace pb::cuda
