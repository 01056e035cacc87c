// The common parts of matrix products: tiles in shared memory, a block's range of k, and its
// results.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/device_code/swizzle.h"
#include "cuda/gemm/params_gemm.h"

namespace pb::cuda {
namespace {

// Returns the first row of a block's tile if the grid's x counts tiles of rows.
__device__ __forceinline__ int row_of_block(int tile_rows) {
  return static_cast<int>(blockIdx.x) * tile_rows;
}

// Takes shared memory for tiles, with the alignment of wgmma.
constexpr int kTileAlignment = 1024;
__device__ __forceinline__ unsigned char* take_tiles(SharedArrays& shared, int n_bytes) {
  return shared.take<unsigned char>(n_bytes, kTileAlignment);
}

// A matrix in global memory with rows of row_bytes, a multiple of 16.
struct ByteRows {
  const unsigned char* data;
  int n_rows;
  int row_bytes;
};

// Copies rows from first_row on, and their bytes from first_byte on, into a swizzled tile
// (n_tile_rows, kRowBytes), with zeros outside the matrix. All threads of the block call this.
template <int kRowBytes>
__device__ __forceinline__ void copy_rows(unsigned char* tile, int n_tile_rows,
                                          const ByteRows& from, int first_row, int first_byte,
                                          int n_threads) {
  constexpr int kChunks = kRowBytes / 16;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int byte = first_byte + chunk * 16;
  for (int r = static_cast<int>(threadIdx.x) / kChunks; r < n_tile_rows; r += n_threads / kChunks) {
    const bool is_there = first_row + r < from.n_rows && byte < from.row_bytes;
    const size_t at = static_cast<size_t>(first_row + r) * from.row_bytes + byte;
    cp_async_16(tile + swizzled<kRowBytes>(r, chunk), from.data + (is_there ? at : 0),
                is_there ? 16 : 0);
  }
}

// The tiles of k that a block multiplies: those of segment blockIdx.z if sums go to p.partial, else
// all.
template <int kTileK>
struct KTiles {
  static constexpr int kInSegment = kSegmentK / kTileK;
  int first;
  int end;

  __device__ __forceinline__ explicit KTiles(const GemmParams& p) {
    first = 0;
    end = (p.k_padded + kTileK - 1) / kTileK;
    if (p.partial == nullptr) return;
    first = static_cast<int>(blockIdx.z) * kInSegment;
    end = first + kInSegment < end ? first + kInSegment : end;
  }
  __device__ __forceinline__ bool ends_segment(int tile) const {
    return (tile + 1) % kInSegment == 0 || tile + 1 == end;
  }
  __device__ __forceinline__ bool is_first_segment(int tile) const {
    return tile / kInSegment == first / kInSegment;
  }
};

// Ends a segment: adds its sums to those of the previous segments, if any.
template <int kCount>
__device__ __forceinline__ void end_segment(float (&sums)[kCount], float (&segment)[kCount],
                                            bool is_first) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sums[i] = is_first ? segment[i] : sums[i] + segment[i];
    segment[i] = 0.0f;
  }
}

// Stores the sum of an output's segments, or the sum of one segment if k is split.
__device__ __forceinline__ void put_sum(const GemmParams& p, int row, int column, float sum) {
  if (row >= p.n_rows || column >= p.n_out) return;
  if (p.partial != nullptr) {
    p.partial[(static_cast<size_t>(blockIdx.z) * p.n_rows + row) * p.n_out + column] = sum;
    return;
  }
  if (p.bias != nullptr) sum += p.bias[column];
  float* const y = p.y + static_cast<size_t>(row) * p.y_stride + column;
  *y = p.adds ? *y + sum : sum;
}

// Stores the sums of two neighbouring columns, of which the first is even.
__device__ __forceinline__ void put_sums(const GemmParams& p, int row, int column, float sum,
                                         float next) {
  // True if rows of partial, or of y, are aligned to 4 bytes only.
  if ((p.n_out | p.y_stride) % 2 != 0 || reinterpret_cast<uintptr_t>(p.y) % 8 != 0) {
    put_sum(p, row, column, sum);
    put_sum(p, row, column + 1, next);
    return;
  }
  if (row >= p.n_rows || column >= p.n_out) return;
  if (p.partial != nullptr) {
    float* to = p.partial + (static_cast<size_t>(blockIdx.z) * p.n_rows + row) * p.n_out + column;
    *reinterpret_cast<float2*>(to) = make_float2(sum, next);
    return;
  }
  if (p.bias != nullptr) {
    sum += p.bias[column];
    next += p.bias[column + 1];
  }
  float2* const y = reinterpret_cast<float2*>(p.y + static_cast<size_t>(row) * p.y_stride + column);
  *y = p.adds ? make_float2(y->x + sum, y->y + next) : make_float2(sum, next);
}

}  // namespace
}  // namespace pb::cuda
