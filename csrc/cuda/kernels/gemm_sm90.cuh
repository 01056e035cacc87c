// Matrix products for many rows with bf16 weights on wgmma: the chain of gemm.cuh, 16 k's at a
// time, ascending, restarted at the same segments. Whether wgmma and mma.sync give the same bits is
// known of models only (arXiv:2511.10909): to be verified on a device before it is used there.
#pragma once

#include "cuda/kernels/device_code_sm90.h"
#include "cuda/kernels/gemm_tiles.cuh"

namespace pb::cuda {
namespace {

// A block has kWgmmaTile rows and columns: two by two warpgroups of 64 by 64.
// Grid: tiles of rows, tiles of columns, segments (one where sums go to y).
__device__ __forceinline__ void gemm_wgmma(const GemmParams& p) {
#ifdef PB_HAS_WGMMA
  constexpr int kRowBytes = kStepK * 2;
  constexpr int kTileBytes = kWgmmaTile * kRowBytes;
  SharedArrays shared;
  unsigned char* const x_stages =
      shared.take<unsigned char>(kWgmmaStages * kTileBytes, kWgmmaAlignment);
  unsigned char* const w_stages =
      shared.take<unsigned char>(kWgmmaStages * kTileBytes, kWgmmaAlignment);
  const int row = static_cast<int>(blockIdx.x) * kWgmmaTile;
  const int column = static_cast<int>(blockIdx.y) * kWgmmaTile;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int group_row = warpgroup / 2 * 64;
  const int group_column = warpgroup % 2 * 64;
  const KTiles<kStepK> k(p);
  const ByteRows x{static_cast<const unsigned char*>(p.x), p.n_rows, p.x_stride * 2};
  const ByteRows w{static_cast<const unsigned char*>(p.w), p.n_out, p.k_padded * 2};
  const auto copy = [&](int i) {
    const int stage = i % kWgmmaStages * kTileBytes;
    const int byte = (k.first + i) * kRowBytes;
    copy_rows<kRowBytes>(x_stages + stage, kWgmmaTile, x, row, byte, kWgmmaThreads);
    copy_rows<kRowBytes>(w_stages + stage, kWgmmaTile, w, column, byte, kWgmmaThreads);
  };

  float sums[32];
  float segment[32] = {};
#pragma unroll
  for (int i = 0; i < kWgmmaStages - 1; ++i) {
    if (k.first + i < k.end) copy(i);
    cp_async_commit();
  }
  for (int i = 0; k.first + i < k.end; ++i) {
    cp_async_wait<kWgmmaStages - 2>();
    fence_for_async_proxy();
    __syncthreads();  // stage i is there for all, and nobody multiplies the one that is filled next
    const int stage = i % kWgmmaStages * kTileBytes;
    const unsigned char* const a = x_stages + stage + group_row * kRowBytes;
    const unsigned char* const b = w_stages + stage + group_column * kRowBytes;
    wgmma_fence();
#pragma unroll
    for (int byte = 0; byte < kRowBytes; byte += 32) {
      wgmma_m64n64k16(segment, wgmma_operand(a + byte), wgmma_operand(b + byte));
    }
    wgmma_commit();
    if (k.first + i + kWgmmaStages - 1 < k.end) copy(i + kWgmmaStages - 1);
    cp_async_commit();
    wgmma_wait();
    if (k.ends_segment(k.first + i)) {
      end_segment(sums, segment, k.is_first_segment(k.first + i));
    }
  }
  cp_async_wait<0>();

  const int t = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    put_sums(p, row + group_row + t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8,
             column + group_column + i / 4 * 8 + t % 4 * 2, sums[i], sums[i + 1]);
  }
#endif
}

PB_KERNEL(gemm_bf16_wgmma_128x128, GemmParams, kWgmmaThreads) { gemm_wgmma(p); }

}  // namespace
}  // namespace pb::cuda
