// Matrix products of mixtures of experts: each block multiplies a tile of one expert's pairs, by
// the templates of plain products. The products have kernels of their own, because finding an
// expert's rows and weights takes registers that the plain kernels do not have. On mma.sync there
// are no tiles of 128x128, which would need too many registers.
#pragma once

#include "cuda/experts/params_experts.h"
#include "cuda/gemm/gemm_f32.cuh"
#include "cuda/gemm/gemm_few.cuh"
#include "cuda/gemm/gemm_quantised.cuh"
#include "cuda/gemm/gemm_wgmma.cuh"

namespace pb::cuda {
namespace {

// Computes the parameters of the block's tile, whose first row becomes row 0. Returns false if
// there is no such tile.
template <typename X>
__device__ __forceinline__ bool product_of_tile(const ExpertGemmParams& p, GemmParams& product) {
  if (static_cast<int>(blockIdx.x) >= p.tiles->n_tiles) return false;
  const ExpertTile tile = p.tiles->tiles[blockIdx.x];
  const ExpertWeight weight = p.weights[tile.expert];
  product =
      GemmParams{.x = static_cast<const X*>(p.x) + static_cast<int64_t>(tile.first) * p.x_stride,
                 .w = weight.w,
                 .scales = weight.scales,
                 .bias = weight.bias,
                 .y = p.y + static_cast<int64_t>(tile.first) * p.n_out,
                 .partial = nullptr,
                 .n_rows = tile.n_rows,
                 .n_out = p.n_out,
                 .x_stride = p.x_stride,
                 .k_padded = p.k_padded,
                 .scale_stride = p.scale_stride,
                 .y_stride = p.n_out,
                 .adds = false};
  return true;
}

template <typename Format, int kRows>
__device__ __forceinline__ void experts_few(const ExpertGemmParams& p) {
  GemmParams product;
  if (product_of_tile<__nv_bfloat16>(p, product)) gemm_few<Format, kRows>(product, 0);
}

template <typename Tiles>
__device__ __forceinline__ void experts_many(const ExpertGemmParams& p) {
  GemmParams product;
  if (product_of_tile<__nv_bfloat16>(p, product)) gemm_many<Tiles, 64, 64, 2, 2>(product, 0);
}

template <typename Tiles>
__device__ __forceinline__ void experts_wgmma(const ExpertGemmParams& p) {
  GemmParams product;
  if (product_of_tile<__nv_bfloat16>(p, product)) gemm_wgmma<Tiles>(product, 0);
}

PB_KERNEL(experts_f32, ExpertGemmParams, kF32Threads) {
  const int row = static_cast<int>(blockIdx.z) * kF32Rows;
  GemmParams product;
  if (product_of_tile<float>(p, product) && row < product.n_rows) gemm_f32_tile(product, row);
}

PB_KERNEL(experts_bf16_few8, ExpertGemmParams, 32 * kFewWarps) { experts_few<Bf16Format, 8>(p); }
PB_LARGE_KERNEL(experts_bf16_few32, ExpertGemmParams, 32 * kFewWarps) {
  experts_few<Bf16Format, 32>(p);
}
PB_LARGE_KERNEL(experts_bf16_64x64, ExpertGemmParams, 128) { experts_many<PlainTiles<64, 128>>(p); }
PB_KERNEL(experts_bf16_wgmma, ExpertGemmParams, kWgmmaThreads) {
  experts_wgmma<PlainTiles<kWgmmaTile, kWgmmaThreads>>(p);
}

}  // namespace
}  // namespace pb::cuda
