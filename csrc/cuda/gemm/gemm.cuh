// Matrix products for many rows: square tiles, with activations on the mma's 16-row side.
//
// The kernels have a pipeline of kGemmStages stages: while one stage is multiplied, cp.async copies
// the next ones. One barrier per stage publishes the copied data and ensures that no thread still
// reads the stage that is filled next.
#pragma once

#include "cuda/gemm/gemm_tiles.cuh"

namespace pb::cuda {
namespace {

constexpr int kStageRowBytes = kStepK * 2;  // bytes per row of bf16 tiles

// Tiles of bf16 weights (kColumns, kStepK), copied unchanged.
template <int kColumns, int kThreads>
class PlainTiles {
 public:
  __device__ __forceinline__ PlainTiles(const GemmParams& p, SharedArrays& shared, int column)
      : from_{static_cast<const unsigned char*>(p.w), p.n_out, p.k_padded * 2},
        column_(column),
        stages_(take_tiles(shared, kGemmStages * kColumns * kStageRowBytes)) {}

  // Issues the copies of stage i, which contains tile `tile` of k.
  __device__ __forceinline__ void copy(int i, int tile) {
    copy_rows<kStageRowBytes>(stage(i), kColumns, from_, column_, tile * kStageRowBytes, kThreads);
  }
  // Fills the first stages, and commits one group of copies for each.
  template <typename CopyX>
  __device__ __forceinline__ void start(int first, int end, CopyX copy_x) {
#pragma unroll
    for (int i = 0; i < kGemmStages - 1; ++i) {
      if (first + i < end) {
        copy_x(i);
        copy(i, first + i);
      }
      cp_async_commit();
    }
  }
  // Continues the copies while stage i is about to be multiplied.
  __device__ __forceinline__ void advance(int i, int first, int end) {
    const int next = i + kGemmStages - 1;
    if (first + next < end) copy(next, first + next);
  }
  __device__ __forceinline__ unsigned char* stage(int i) const {
    return stages_ + i % kGemmStages * (kColumns * kStageRowBytes);
  }

 private:
  ByteRows from_;
  int column_;
  unsigned char* stages_;
};

// acc += the products of a stage, x tile (kRows, kStepK) by w tile (kColumns, kStepK), for a warp's
// part: 16 kMi rows from warp_row on and 8 kNj columns from warp_column on.
template <int kMi, int kNj>
__device__ __forceinline__ void multiply_stage(const unsigned char* x, const unsigned char* w,
                                               int warp_row, int warp_column,
                                               float (&acc)[kMi][kNj * 4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int chunk = 0; chunk < kStepK / 8; chunk += 2) {  // an mma step is two chunks of 8
    unsigned a[kMi][4];
    unsigned b[kNj / 2][4];
#pragma unroll
    for (int i = 0; i < kMi; ++i) {
      ldmatrix_x4(a[i],
                  x + swizzled<kStageRowBytes>(warp_row + i * 16 + lane % 16, chunk + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < kNj / 2; ++j) {
      ldmatrix_x4(b[j],
                  w + swizzled<kStageRowBytes>(warp_column + j * 16 + lane % 8 + lane / 16 * 8,
                                               chunk + lane / 8 % 2));
    }
#pragma unroll
    for (int i = 0; i < kMi; ++i) {
#pragma unroll
      for (int j = 0; j < kNj; ++j) {
        float c[4] = {acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2], acc[i][4 * j + 3]};
        const unsigned pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
        mma_bf16(c, a[i], pair);
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][4 * j + e] = c[e];
      }
    }
  }
}

// The grid is tiles of kRows rows, by tiles of kColumns columns, by segments (one if sums go to y).
// `Tiles` is PlainTiles, or ExpandedTiles of gemm_quantised.cuh. `row` is the first row of the
// block's tile.
template <typename Tiles, int kRows, int kColumns, int kWarpsM, int kWarpsN>
__device__ __forceinline__ void gemm_many(const GemmParams& p, int row = row_of_block(kRows)) {
  constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  constexpr int kMi = kRows / kWarpsM / 16;    // mma tiles per warp
  constexpr int kNj = kColumns / kWarpsN / 8;  // an ldmatrix loads two of them
  static_assert(kMi >= 1 && kNj >= 2 && kNj % 2 == 0);
  SharedArrays shared;
  unsigned char* const x_stages = take_tiles(shared, kGemmStages * kRows * kStageRowBytes);
  const int column = static_cast<int>(blockIdx.y) * kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / kWarpsN * (kRows / kWarpsM);
  const int warp_column = warp % kWarpsN * (kColumns / kWarpsN);

  const KTiles<kStepK> k(p);
  const ByteRows x{static_cast<const unsigned char*>(p.x), p.n_rows, p.x_stride * 2};
  const auto x_stage = [&](int i) { return x_stages + i % kGemmStages * (kRows * kStageRowBytes); };
  const auto copy_x = [&](int i) {
    copy_rows<kStageRowBytes>(x_stage(i), kRows, x, row, (k.first + i) * kStageRowBytes, kThreads);
  };
  Tiles w(p, shared, column);

  float sums[kMi][kNj * 4];
  float segment[kMi][kNj * 4] = {};
  w.start(k.first, k.end, copy_x);
  for (int i = 0; k.first + i < k.end; ++i) {
    cp_async_wait<kGemmStages - 2>();
    __syncthreads();
    if (k.first + i + kGemmStages - 1 < k.end) copy_x(i + kGemmStages - 1);
    w.advance(i, k.first, k.end);
    cp_async_commit();
    multiply_stage<kMi, kNj>(x_stage(i), w.stage(i), warp_row, warp_column, segment);
    if (k.ends_segment(k.first + i)) {
#pragma unroll
      for (int m = 0; m < kMi; ++m) {
        end_segment(sums[m], segment[m], k.is_first_segment(k.first + i));
      }
    }
  }
  cp_async_wait<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kMi; ++i) {
#pragma unroll
    for (int j = 0; j < kNj; ++j) {
      const int c = column + warp_column + j * 8 + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        put_sums(p, row + warp_row + i * 16 + lane / 4 + half * 8, c, sums[i][4 * j + 2 * half],
                 sums[i][4 * j + 2 * half + 1]);
      }
    }
  }
}

PB_KERNEL(gemm_bf16_128x128, GemmParams, 256) {
  gemm_many<PlainTiles<128, 256>, 128, 128, 2, 4>(p);
}
PB_KERNEL(gemm_bf16_64x64, GemmParams, 128) { gemm_many<PlainTiles<64, 128>, 64, 64, 2, 2>(p); }

}  // namespace
}  // namespace pb::cuda
