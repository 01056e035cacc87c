// All kernels of each weight format: one macro defines them, for every row of formats/list.h that
// has CUDA kernels. gemm_launch.cc and expert_launch.cc have their names.
#pragma once

#include "cuda/experts/expert_gemm.cuh"
#include "cuda/gemm/embed.cuh"
#include "cuda/gemm/expand_weights.cuh"
#include "cuda/gemm/gemm_few.cuh"
#include "cuda/gemm/gemm_quantised.cuh"
#include "cuda/gemm/gemm_tma.cuh"
#include "cuda/gemm/gemm_wgmma.cuh"
#include "formats/list.h"

namespace pb::cuda {
namespace {

#define PB_WEIGHT_KERNELS(constant, name, Type)                                                 \
  PB_KERNEL(gather_rows_##name, GatherParams, kGatherThreads) { gather_row<Type##Format>(p); }  \
  PB_KERNEL(expand_##name, ExpandWeightsParams, kExpandThreads) {                               \
    expand_weights<Type##Format>(p);                                                            \
  }                                                                                             \
  PB_KERNEL(gemm_##name##_few8, GemmParams, 32 * kFewWarps) { gemm_few<Type##Format, 8>(p); }   \
  PB_KERNEL(gemm_##name##_few16, GemmParams, 32 * kFewWarps) { gemm_few<Type##Format, 16>(p); } \
  PB_KERNEL(gemm_##name##_few32, GemmParams, 32 * kFewWarps) { gemm_few<Type##Format, 32>(p); } \
  PB_KERNEL(gemm_##name##_64x64, GemmParams, 128) {                                             \
    gemm_many<ExpandedTiles<Type##Format, 64, 128>, 64, 64, 2, 2>(p);                           \
  }                                                                                             \
  PB_KERNEL(gemm_##name##_128x128, GemmParams, 256) {                                           \
    gemm_many<ExpandedTiles<Type##Format, 128, 256>, 128, 128, 2, 4>(p);                        \
  }                                                                                             \
  PB_KERNEL(gemm_##name##_wgmma, GemmParams, kWgmmaThreads) {                                   \
    gemm_wgmma<ExpandedTiles<Type##Format, kWgmmaTile, kWgmmaThreads>>(p);                      \
  }                                                                                             \
  PB_KERNEL(gemm_##name##_tma, TmaGemmParams, kWgmmaThreads) {                                  \
    gemm_tma_expanded<Type##Format>(p);                                                         \
  }                                                                                             \
  PB_KERNEL(experts_##name##_few8, ExpertGemmParams, 32 * kFewWarps) {                          \
    experts_few<Type##Format, 8>(p);                                                            \
  }                                                                                             \
  PB_LARGE_KERNEL(experts_##name##_few32, ExpertGemmParams, 32 * kFewWarps) {                   \
    experts_few<Type##Format, 32>(p);                                                           \
  }                                                                                             \
  PB_LARGE_KERNEL(experts_##name##_64x64, ExpertGemmParams, 128) {                              \
    experts_many<ExpandedTiles<Type##Format, 64, 128>>(p);                                      \
  }                                                                                             \
  PB_KERNEL(experts_##name##_wgmma, ExpertGemmParams, kWgmmaThreads) {                          \
    experts_wgmma<ExpandedTiles<Type##Format, kWgmmaTile, kWgmmaThreads>>(p);                   \
  }
PB_CUDA_FORMATS(PB_WEIGHT_KERNELS)
#undef PB_WEIGHT_KERNELS

}  // namespace
}  // namespace pb::cuda
