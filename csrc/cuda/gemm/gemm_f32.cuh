// Matrix products with f32 weights, the exact reference path: chains of fused multiply-adds.
#pragma once

#include "cuda/gemm/gemm_tiles.cuh"

namespace pb::cuda {
namespace {

// Copies (n_tile_rows, kF32TileK) numbers of a matrix into a tile with rows of kF32Pitch numbers,
// with zeros outside the matrix. All threads of the block call this.
__device__ __forceinline__ void copy_f32_rows(float* tile, int n_tile_rows, const float* from,
                                              int n_rows, int stride, int first_row, int column) {
  constexpr int kChunks = kF32TileK / 4;
  const int c = static_cast<int>(threadIdx.x) % kChunks * 4;
  for (int r = static_cast<int>(threadIdx.x) / kChunks; r < n_tile_rows;
       r += kF32Threads / kChunks) {
    const bool is_there = first_row + r < n_rows && column + c < stride;
    const size_t at = static_cast<size_t>(first_row + r) * stride + column + c;
    cp_async_16(tile + r * kF32Pitch + c, from + (is_there ? at : 0), is_there ? 16 : 0);
  }
}

// The grid is tiles of kF32Rows rows, by tiles of kF32Columns columns, by segments (one if sums go
// to y). A thread computes 4 rows, at a distance of 8, by 4 columns, at a distance of 16. `row` is
// the first row of the block's tile.
__device__ __forceinline__ void gemm_f32_tile(const GemmParams& p,
                                              int row = row_of_block(kF32Rows)) {
  SharedArrays shared;
  float* const x_stages = shared.take<float>(kGemmStages * kF32Rows * kF32Pitch);
  float* const w_stages = shared.take<float>(kGemmStages * kF32Columns * kF32Pitch);
  const int column = static_cast<int>(blockIdx.y) * kF32Columns;
  const int own_row = static_cast<int>(threadIdx.x) / 16;
  const int own_column = static_cast<int>(threadIdx.x) % 16;
  const KTiles<kF32TileK> k(p);
  const auto copy = [&](int i) {
    const int stage = i % kGemmStages;
    const int at = (k.first + i) * kF32TileK;
    copy_f32_rows(x_stages + stage * kF32Rows * kF32Pitch, kF32Rows, static_cast<const float*>(p.x),
                  p.n_rows, p.x_stride, row, at);
    copy_f32_rows(w_stages + stage * kF32Columns * kF32Pitch, kF32Columns,
                  static_cast<const float*>(p.w), p.n_out, p.k_padded, column, at);
  };

  float sums[16];
  float segment[16] = {};
#pragma unroll
  for (int i = 0; i < kGemmStages - 1; ++i) {
    if (k.first + i < k.end) copy(i);
    cp_async_commit();
  }
  for (int i = 0; k.first + i < k.end; ++i) {
    cp_async_wait<kGemmStages - 2>();
    __syncthreads();  // one per stage, as in gemm.cuh
    if (k.first + i + kGemmStages - 1 < k.end) copy(i + kGemmStages - 1);
    cp_async_commit();
    const int stage = i % kGemmStages;
    const float* const x = x_stages + (stage * kF32Rows + own_row) * kF32Pitch;
    const float* const w = w_stages + (stage * kF32Columns + own_column) * kF32Pitch;
#pragma unroll
    for (int at = 0; at < kF32TileK; at += 4) {
      float4 a[4];
#pragma unroll
      for (int r = 0; r < 4; ++r)
        a[r] = *reinterpret_cast<const float4*>(x + r * 8 * kF32Pitch + at);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float4 b = *reinterpret_cast<const float4*>(w + c * 16 * kF32Pitch + at);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          float sum = segment[4 * r + c];
          sum = __fmaf_rn(a[r].x, b.x, sum);
          sum = __fmaf_rn(a[r].y, b.y, sum);
          sum = __fmaf_rn(a[r].z, b.z, sum);
          segment[4 * r + c] = __fmaf_rn(a[r].w, b.w, sum);
        }
      }
    }
    if (k.ends_segment(k.first + i)) end_segment(sums, segment, k.is_first_segment(k.first + i));
  }
  cp_async_wait<0>();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      put_sum(p, row + own_row + 8 * r, column + own_column + 16 * c, sums[4 * r + c]);
    }
  }
}

PB_KERNEL(gemm_f32, GemmParams, kF32Threads) { gemm_f32_tile(p); }

}  // namespace
}  // namespace pb::cuda
