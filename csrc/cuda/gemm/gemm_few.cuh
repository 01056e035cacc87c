// Matrix products for few rows, which are limited by the bandwidth of the weights.
//
// Weights take the mma's 16-row side and activations the 8-row side, so that one mma reads 16
// columns of weights for 8 rows; the products of a step, and so the sums, are the same as in
// gemm.cuh. A warp has 16 columns. Quantised weights are expanded in its registers, each number
// once per block.
#pragma once

#include "cuda/gemm/gemm_tiles.cuh"
#include "cuda/weights/expand.cuh"
#include "cuda/weights/expand_mxfp4.cuh"
#include "cuda/weights/expand_super.cuh"

namespace pb::cuda {
namespace {

// Loads the fragments, for two mmas, of 16 columns (rows of the tile) from `row` on and 32 numbers
// of k from `k` on. first_group is the tile's first group, counted from the start of its 16 bytes
// of the scales' tail.
template <typename Format>
__device__ __forceinline__ void load_weights(const unsigned char* tile, const unsigned char* scales,
                                             int first_group, int row, int k, unsigned (&a)[2][4]) {
  constexpr int kRowBytes = FewTile<Format, 8>::kWRowBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (Format::kBits == 16) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      ldmatrix_x4(a[step],
                  tile + swizzled<kRowBytes>(row + lane % 16, k / 8 + 2 * step + lane / 16));
    }
  } else {
    using Group = GroupOf<Format>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // the lane's two columns
      const int r = row + lane / 4 + 8 * half;
      const auto bytes_at = [&](int chunk, int byte) -> unsigned {
        if constexpr (kRowBytes == 0) {
          return 0;  // all numbers lie with the scales
        } else {
          return *reinterpret_cast<const uint16_t*>(tile + swizzled<kRowBytes>(r, chunk) + byte +
                                                    lane % 4 * 2);
        }
      };
      const unsigned char* const of_column = scales + r * Format::kTileScaleBytes;
      const Group group(
          Group::load(of_column, k / 32, of_column + Format::kScaleBytes, first_group + k / 32),
          k / 32 % 2);
      if constexpr (Format::kBits == 8) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          a[step][half] = group.pair(bytes_at(k / 16 + step, 0));
          a[step][half + 2] = group.pair(bytes_at(k / 16 + step, 8));
        }
      } else {
        group.pairs(bytes_at(k / 32, 0), lane % 4, a[0][half], a[1][half]);
        group.pairs(bytes_at(k / 32, 8), 4 + lane % 4, a[0][half + 2], a[1][half + 2]);
      }
    }
  }
}

// Loads the fragments of kRows rows of activations for 32 numbers of k from `k` on.
template <int kRowBytes, int kRows>
__device__ __forceinline__ void load_activations(const unsigned char* tile, int k,
                                                 unsigned (&b)[2][kRows / 8][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (kRows == 8) {
    unsigned v[4];
    ldmatrix_x4(v, tile + swizzled<kRowBytes>(lane % 8, k / 8 + lane / 8));
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i / 2][0][i % 2] = v[i];
  } else {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int j = 0; j < kRows / 16; ++j) {
        unsigned v[4];
        ldmatrix_x4(v, tile + swizzled<kRowBytes>(j * 16 + lane % 8 + lane / 16 * 8,
                                                  k / 8 + 2 * step + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) b[step][2 * j + i / 2][i % 2] = v[i];
      }
    }
  }
}

// Copies the scales of n_columns columns, from `column` on, for tile `tile` of k: kTileScaleBytes
// per column, including its part of the tail. Two of the n_threads threads copy a column.
template <typename Format>
__device__ __forceinline__ void copy_scales(unsigned char* to, const GemmParams& p, int column,
                                            int n_columns, int tile, int n_threads) {
  constexpr int kOfTile = Format::kScaleBytes / 16;
  constexpr int kChunks = Format::kTileScaleBytes / 16;
#pragma unroll
  for (int turn = 0; turn < (kChunks + 1) / 2; ++turn) {
    const int at = turn * n_threads + static_cast<int>(threadIdx.x);
    if (at >= n_columns * kChunks) continue;
    const int chunk = at % kChunks;
    const int c = column + at / kChunks;
    const bool is_there = c < p.n_out;
    int byte = tile * Format::kScaleBytes + chunk * 16;
    if constexpr (Format::kTailTiles > 0) {
      if (chunk == kOfTile) {
        byte = Format::tail_offset(p.k_padded) + tile / Format::kTailTiles * kTailChunk;
      }
    }
    const size_t from = static_cast<size_t>(c) * p.scale_stride + byte / 2;
    cp_async_16(to + at * 16, p.scales + (is_there ? from : 0), is_there ? 16 : 0);
  }
}

// The grid is tiles of kRows rows, by tiles of half as many columns as there are threads, by
// segments (one if sums go to y). `row` is the first row of the block's tile.
template <typename Format, int kRows>
__device__ __forceinline__ void gemm_few(const GemmParams& p, int row = row_of_block(kRows)) {
  using Tile = FewTile<Format, kRows>;
  constexpr int kTileK = Tile::kTileK;
  constexpr int kStages = Tile::kStages;
  const int n_threads = static_cast<int>(blockDim.x);
  const int n_columns = n_threads / 2;
  const int column = static_cast<int>(blockIdx.y) * n_columns;
  const int warp_column = static_cast<int>(threadIdx.x) / 32 * 16;

  // Each array has kStages stages.
  SharedArrays shared;
  const int w_bytes = n_columns * Tile::kWRowBytes;
  const int scale_bytes = n_columns * Tile::kScaleBytes;
  unsigned char* const x_stages = take_tiles(shared, kStages * Tile::kXBytes);
  unsigned char* const w_stages = take_tiles(shared, kStages * w_bytes);
  unsigned char* const scale_stages = take_tiles(shared, kStages * scale_bytes);
  const KTiles<kTileK> k(p);
  const ByteRows x{static_cast<const unsigned char*>(p.x), p.n_rows, p.x_stride * 2};
  const ByteRows w{static_cast<const unsigned char*>(p.w), p.n_out, p.k_padded / 8 * Format::kBits};
  const auto copy = [&](int i) {
    const int stage = i % kStages;
    const int tile = k.first + i;
    if constexpr (Tile::kWRowBytes > 0) {
      copy_rows<Tile::kWRowBytes>(w_stages + stage * w_bytes, n_columns, w, column,
                                  tile * Tile::kWRowBytes, n_threads);
    }
    copy_rows<Tile::kXRowBytes>(x_stages + stage * static_cast<int>(Tile::kXBytes), kRows, x, row,
                                tile * Tile::kXRowBytes, n_threads);
    if constexpr (Format::kBits != 16) {
      copy_scales<Format>(scale_stages + stage * scale_bytes, p, column, n_columns, tile,
                          n_threads);
    }
  };

  float sums[kRows / 2];
  float segment[kRows / 2] = {};
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (k.first + i < k.end) copy(i);
    cp_async_commit();
  }
  for (int i = 0; k.first + i < k.end; ++i) {
    const int tile = k.first + i;
    cp_async_wait<kStages - 2>();
    __syncthreads();
    if (tile + kStages - 1 < k.end) copy(i + kStages - 1);
    cp_async_commit();
    const int stage = i % kStages;
    const unsigned char* const x_tile = x_stages + stage * static_cast<int>(Tile::kXBytes);
    const unsigned char* const w_tile = w_stages + stage * w_bytes;
    const unsigned char* const scales = scale_stages + stage * scale_bytes;
    const int first_group = Format::kTailTiles > 0 ? tile % Format::kTailTiles * (kTileK / 32) : 0;
#pragma unroll
    for (int part = 0; part < kTileK; part += kStepK) {
      if (tile * kTileK + part >= p.k_padded) break;  // only whole steps, as in all kernels
#pragma unroll
      for (int at = part; at < part + kStepK; at += 32) {
        unsigned a[2][4];
        unsigned b[2][kRows / 8][2];
        load_weights<Format>(w_tile, scales, first_group, warp_column, at, a);
        load_activations<Tile::kXRowBytes, kRows>(x_tile, at, b);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
#pragma unroll
          for (int j = 0; j < kRows / 8; ++j) {
            float c[4] = {segment[4 * j], segment[4 * j + 1], segment[4 * j + 2],
                          segment[4 * j + 3]};
            mma_bf16(c, a[step], b[step][j]);
#pragma unroll
            for (int e = 0; e < 4; ++e) segment[4 * j + e] = c[e];
          }
        }
      }
    }
    if (k.ends_segment(tile)) end_segment(sums, segment, k.is_first_segment(tile));
  }
  cp_async_wait<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      put_sum(p, row + j * 8 + lane % 4 * 2 + e % 2, column + warp_column + lane / 4 + e / 2 * 8,
              sums[4 * j + e]);
    }
  }
}

PB_KERNEL(gemm_bf16_few8, GemmParams, 32 * kFewWarps) { gemm_few<Bf16Format, 8>(p); }
PB_KERNEL(gemm_bf16_few16, GemmParams, 32 * kFewWarps) { gemm_few<Bf16Format, 16>(p); }
PB_KERNEL(gemm_bf16_few32, GemmParams, 32 * kFewWarps) { gemm_few<Bf16Format, 32>(p); }

}  // namespace
}  // namespace pb::cuda
