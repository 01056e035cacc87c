// Matrix products for many rows with quantised weights, which are expanded to bf16 in shared
// memory.
//
// A thread expands the data that it has copied itself, one group of 32 per stage, so that no
// barrier is needed between the two; the barrier of the stage publishes the result.
#pragma once

#include "cuda/gemm/gemm.cuh"
#include "cuda/weights/expand.cuh"
#include "cuda/weights/expand_mxfp4.cuh"
#include "cuda/weights/expand_super.cuh"

namespace pb::cuda {
namespace {

// Writes the numbers of a group as 4 chunks of 8 bf16. `raw` points to the group's 32 or 16 bytes
// (or none, if kBits is 0), in pieces of 16 bytes that are `stride` bytes apart.
template <typename Format, typename PutChunk>
__device__ __forceinline__ void expand_group(const unsigned char* raw, int stride,
                                             const GroupOf<Format>& group, PutChunk put_chunk) {
  if constexpr (Format::kBits == 8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 v = *reinterpret_cast<const uint4*>(raw + half * stride);
      put_chunk(2 * half, uint4{group.pair(v.x), group.pair(v.x >> 16), group.pair(v.y),
                                group.pair(v.y >> 16)});
      put_chunk(2 * half + 1, uint4{group.pair(v.z), group.pair(v.z >> 16), group.pair(v.w),
                                    group.pair(v.w >> 16)});
    }
  } else {
    uint4 v{};
    if constexpr (Format::kBits > 0) v = *reinterpret_cast<const uint4*>(raw);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // byte i has the elements i and i + 16
      unsigned low[4];
      unsigned high[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        group.pairs(words[2 * half + i / 2] >> i % 2 * 16, 4 * half + i, low[i], high[i]);
      }
      put_chunk(half, uint4{low[0], low[1], low[2], low[3]});
      put_chunk(2 + half, uint4{high[0], high[1], high[2], high[3]});
    }
  }
}

// Tiles of quantised weights. They are copied unchanged, one stage ahead of the activations, and
// expanded while the previous stage is multiplied. Two threads handle a column.
template <typename Format, int kColumns, int kThreads>
class ExpandedTiles {
 public:
  static_assert(kThreads == 2 * kColumns);

  __device__ __forceinline__ ExpandedTiles(const GemmParams& p, SharedArrays& shared, int column)
      : from_{static_cast<const unsigned char*>(p.w), p.n_out, p.k_padded / 8 * Format::kBits},
        n_groups_(p.k_padded / 32),
        column_(column + static_cast<int>(threadIdx.x) / 2),
        tiles_(take_tiles(shared, 2 * kTileBytes)),
        raw_(take_tiles(shared, (kGemmStages - 1) * kPieces * kPieceStride) + threadIdx.x * 16),
        scales_(reinterpret_cast<const unsigned char*>(
            p.scales + static_cast<size_t>(column_ < p.n_out ? column_ : 0) * p.scale_stride)),
        tail_(scales_ + Format::tail_offset(p.k_padded)) {}

  template <typename CopyX>
  __device__ __forceinline__ void start(int first, int end, CopyX copy_x) {
    static_assert(kGemmStages == 3);
    copy_x(0);
    copy_raw(0, first, end);
    copy_raw(1, first, end);
    cp_async_commit();
    if (first + 1 < end) copy_x(1);
    cp_async_wait<0>();  // waits for the group above only
    expand(0);
    copy_raw(2, first, end);
    cp_async_commit();
  }
  __device__ __forceinline__ void advance(int i, int first, int end) {
    if (first + i + 1 < end) expand(i + 1);
    copy_raw(i + kGemmStages, first, end);
  }
  __device__ __forceinline__ unsigned char* stage(int i) const {
    return tiles_ + i % 2 * kTileBytes;
  }

 private:
  using Group = GroupOf<Format>;
  static constexpr int kTileBytes = kColumns * kStageRowBytes;
  static constexpr int kPieces = Format::kBits / 4;  // 16-byte pieces per group
  static constexpr int kPieceStride = kThreads * 16;

  __device__ __forceinline__ unsigned char* raw(int i) const {
    return raw_ + i % (kGemmStages - 1) * (kPieces * kPieceStride);
  }
  // Issues the copies of the thread's group of stage i, and loads its scales.
  __device__ __forceinline__ void copy_raw(int i, int first, int end) {
    const int group = (first + i) * 2 + static_cast<int>(threadIdx.x) % 2;
    const int byte = group * (kPieces * 16);
    // The comparison of bytes takes a register less where a group has bytes of its own.
    const bool in_row = Format::kBits > 0 ? byte < from_.row_bytes : group < n_groups_;
    const bool is_there = first + i < end && column_ < from_.n_rows && in_row;
    const size_t at = is_there ? static_cast<size_t>(column_) * from_.row_bytes + byte : 0;
    of_group_ = of_next_;
    of_next_ = is_there ? Group::load(scales_, group, tail_, group) : typename Group::Scales{};
    if (first + i >= end) return;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      cp_async_16(raw(i) + piece * kPieceStride, from_.data + at + (is_there ? piece * 16 : 0),
                  is_there ? 16 : 0);
    }
  }
  __device__ __forceinline__ void expand(int i) {
    const int row = static_cast<int>(threadIdx.x) / 2;
    const int chunk = static_cast<int>(threadIdx.x) % 2 * 4;
    unsigned char* const tile = stage(i);
    const Group group(of_group_, static_cast<int>(threadIdx.x) % 2);
    expand_group<Format>(raw(i), kPieceStride, group, [&](int part, const uint4& v) {
      *reinterpret_cast<uint4*>(tile + swizzled<kStageRowBytes>(row, chunk + part)) = v;
    });
  }

  ByteRows from_;
  int n_groups_;  // groups per row
  int column_;
  unsigned char* tiles_;  // two expanded tiles
  unsigned char* raw_;    // this thread's pieces
  const unsigned char* scales_;
  const unsigned char* tail_;
  typename Group::Scales of_group_{};  // the scales of the group that is expanded next
  typename Group::Scales of_next_{};
};

}  // namespace
}  // namespace pb::cuda
