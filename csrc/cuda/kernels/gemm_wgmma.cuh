// Matrix products for many rows on Hopper's wgmma: the tiles and the pipeline of gemm.cuh, and its
// chain, 16 k's at a time, ascending, restarted at the same segments. By the models of both
// (arXiv:2511.10909) wgmma has the bits of mma.sync.
#pragma once

#include "cuda/kernels/gemm_quantised.cuh"
#include "cuda/kernels/wgmma.h"

namespace pb::cuda {
namespace {

// A block has kWgmmaTile rows and columns: two warpgroups of 64 rows each.
// Grid: tiles of rows, tiles of columns, segments (one where sums go to y).
// Tiles: PlainTiles or ExpandedTiles, of kWgmmaTile columns. row: the first of the block's tile.
template <typename Tiles>
__device__ __forceinline__ void gemm_wgmma(const GemmParams& p,
                                           int row = row_of_block(kWgmmaTile)) {
#ifdef PB_HAS_WGMMA
  static_assert(kTileAlignment % kWgmmaAlignment == 0);
  constexpr int kTileBytes = kWgmmaTile * kStageRowBytes;
  SharedArrays shared;
  unsigned char* const x_stages = take_tiles(shared, kGemmStages * kTileBytes);
  const int column = static_cast<int>(blockIdx.y) * kWgmmaTile;
  const int group_row = static_cast<int>(threadIdx.x) / 128 * 64;

  const KTiles<kStepK> k(p);
  const ByteRows x{static_cast<const unsigned char*>(p.x), p.n_rows, p.x_stride * 2};
  const auto x_stage = [&](int i) { return x_stages + i % kGemmStages * kTileBytes; };
  const auto copy_x = [&](int i) {
    copy_rows<kStageRowBytes>(x_stage(i), kWgmmaTile, x, row, (k.first + i) * kStageRowBytes,
                              kWgmmaThreads);
  };
  Tiles w(p, shared, column);

  float sums[64];
  float segment[64] = {};
  w.start(k.first, k.end, copy_x);
  for (int i = 0; k.first + i < k.end; ++i) {
    cp_async_wait<kGemmStages - 2>();
    fence_for_async_proxy();
    __syncthreads();  // stage i is there for all, and nobody multiplies the one that is filled next
    const unsigned char* const a = x_stage(i) + group_row * kStageRowBytes;
    const unsigned char* const b = w.stage(i);
    wgmma_fence(segment);
#pragma unroll
    for (int byte = 0; byte < kStageRowBytes; byte += 32) {
      wgmma_m64n128k16(segment, wgmma_operand(a + byte), wgmma_operand(b + byte));
    }
    wgmma_commit();
    if (k.first + i + kGemmStages - 1 < k.end) copy_x(i + kGemmStages - 1);
    w.advance(i, k.first, k.end);
    cp_async_commit();
    wgmma_wait<0>(segment);
    if (k.ends_segment(k.first + i)) {
      end_segment(sums, segment, k.is_first_segment(k.first + i));
    }
  }
  cp_async_wait<0>();

  const int t = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    put_sums(p, row + group_row + t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8,
             column + i / 4 * 8 + t % 4 * 2, sums[i], sums[i + 1]);
  }
#elif defined(__CUDA_ARCH__)
  __trap();  // no launch description names it here; an output that nobody writes would go unseen
#endif
}

PB_KERNEL(gemm_bf16_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<PlainTiles<kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_int8_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Int8Format, kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_int4_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Int4Format, kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_int4_zp_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Int4ZpFormat, kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_q4_k_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Q4KFormat, kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_q5_k_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Q5KFormat, kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_q6_k_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Q6KFormat, kWgmmaTile, kWgmmaThreads>>(p);
}
PB_KERNEL(gemm_mxfp4_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<ExpandedTiles<Mxfp4Format, kWgmmaTile, kWgmmaThreads>>(p);
}

}  // namespace
}  // namespace pb::cuda
