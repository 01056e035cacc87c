// y = x W^T with cp.async in two stages, ldmatrix and mma; with one of these bugs planted.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

enum class GemmBug {
  kNone,
  kNoBarrierBefore,  // other threads' copies are read before they are there
  kNoBarrierAfter,   // a stage is loaded while others still read it
  kWrongWait,        // waits for too few groups of copies
  kDivergentBarrier,
  kNoWait,         // ends with copies under way
  kDynamicBounds,  // writes behind the end of shared memory
  kArrayBounds,    // writes behind an array, into what lies next in shared memory
  kGlobalRead,     // reads rows that x does not have
  kGlobalWrite,    // writes rows that y does not have
};

struct GemmParams {
  const __nv_bfloat16* x;  // (m, k)
  const __nv_bfloat16* w;  // (64, k)
  float* y;                // (m, 64)
  int m;                   // at most 64
  int k;                   // a multiple of 32
};

constexpr int kGemmTile = 64;
constexpr int kGemmStep = 32;
constexpr int kGemmPitch = kGemmStep + 8;  // eight rows begin in different banks
constexpr int kGemmStage = kGemmTile * kGemmPitch;

struct GemmArrays {
  __nv_bfloat16* x;  // (2, kGemmTile, kGemmPitch)
  __nv_bfloat16* w;  // likewise
};
template <typename Arrays>
PB_HOST_DEVICE GemmArrays take_gemm_arrays(Arrays& arrays) {
  return {arrays.template take<__nv_bfloat16>(2 * kGemmStage),
          arrays.template take<__nv_bfloat16>(2 * kGemmStage)};
}

// 128 threads; shared memory as take_gemm_arrays says.
template <GemmBug kBug>
__device__ __forceinline__ void multiply_with_bug(const GemmParams& p) {
  SharedArrays arrays;
  const GemmArrays shared = take_gemm_arrays(arrays);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;

  // 32 columns of 64 rows of a matrix (n_rows, k); zeros where there are no rows.
  const auto load_tile = [&](__nv_bfloat16* to, const __nv_bfloat16* from, int n_rows, int k0,
                             bool is_w) {
    for (int i = thread; i < kGemmTile * 4; i += 128) {
      int row = i / 4;
      const int column = i % 4 * 8;
      bool is_there = row < n_rows;
      const __nv_bfloat16* const source = from + (is_there ? row * p.k + k0 + column : 0);
      if (kBug == GemmBug::kGlobalRead && !is_w) is_there = true;
      if (row == kGemmTile - 1) {
        if (kBug == GemmBug::kDynamicBounds && is_w && k0 / kGemmStep % 2 == 1) ++row;
        if (kBug == GemmBug::kArrayBounds && !is_w && k0 / kGemmStep % 2 == 1) ++row;
      }
      const __nv_bfloat16* const beyond = from + (i / 4 * p.k + k0 + column);
      cp_async_16(to + row * kGemmPitch + column,
                  kBug == GemmBug::kGlobalRead && !is_w ? beyond : source, is_there ? 16 : 0);
    }
  };
  const auto load = [&](int step) {
    load_tile(shared.x + step % 2 * kGemmStage, p.x, p.m, step * kGemmStep, false);
    load_tile(shared.w + step % 2 * kGemmStage, p.w, kGemmTile, step * kGemmStep, true);
  };

  float sums[8][4] = {};  // of the warp's 16 rows
  const int n_steps = p.k / kGemmStep;
  load(0);
  cp_async_commit();
  for (int step = 0; step < n_steps; ++step) {
    if (step + 1 < n_steps) load(step + 1);
    cp_async_commit();
    if (kBug != GemmBug::kNoWait) cp_async_wait<kBug == GemmBug::kWrongWait ? 2 : 1>();
    if (kBug != GemmBug::kNoBarrierBefore) __syncthreads();
    const __nv_bfloat16* const x = shared.x + step % 2 * kGemmStage + warp * 16 * kGemmPitch;
    const __nv_bfloat16* const w = shared.w + step % 2 * kGemmStage;
    for (int k = 0; k < kGemmStep; k += 16) {
      unsigned a[4];
      ldmatrix_x4(a, x + lane % 16 * kGemmPitch + k + lane / 16 * 8);
      for (int j = 0; j < 8; ++j) {
        unsigned b[2];
        ldmatrix_x2(b, w + (j * 8 + lane % 8) * kGemmPitch + k + lane / 8 % 2 * 8);
        mma_bf16(sums[j], a, b);
      }
    }
    if (kBug == GemmBug::kDivergentBarrier && warp == 0) __syncthreads();
    if (kBug != GemmBug::kNoBarrierAfter) __syncthreads();
  }
  if (kBug != GemmBug::kNoWait) cp_async_wait<0>();

  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) {
      const int row = warp * 16 + lane / 4 + i / 2 * 8;
      const int n_rows = kBug == GemmBug::kGlobalWrite ? p.m + 1 : p.m;
      if (row < n_rows) p.y[row * kGemmTile + j * 8 + lane % 4 * 2 + i % 2] = sums[j][i];
    }
  }
}

PB_KERNEL(gemm, GemmParams, 128) { multiply_with_bug<GemmBug::kNone>(p); }
PB_KERNEL(gemm_no_barrier_before, GemmParams, 128) {
  multiply_with_bug<GemmBug::kNoBarrierBefore>(p);
}
PB_KERNEL(gemm_no_barrier_after, GemmParams, 128) {
  multiply_with_bug<GemmBug::kNoBarrierAfter>(p);
}
PB_KERNEL(gemm_wrong_wait, GemmParams, 128) { multiply_with_bug<GemmBug::kWrongWait>(p); }
PB_KERNEL(gemm_divergent_barrier, GemmParams, 128) {
  multiply_with_bug<GemmBug::kDivergentBarrier>(p);
}
PB_KERNEL(gemm_no_wait, GemmParams, 128) { multiply_with_bug<GemmBug::kNoWait>(p); }
PB_KERNEL(gemm_dynamic_bounds, GemmParams, 128) { multiply_with_bug<GemmBug::kDynamicBounds>(p); }
PB_KERNEL(gemm_array_bounds, GemmParams, 128) { multiply_with_bug<GemmBug::kArrayBounds>(p); }
PB_KERNEL(gemm_global_read, GemmParams, 128) { multiply_with_bug<GemmBug::kGlobalRead>(p); }
PB_KERNEL(gemm_global_write, GemmParams, 128) { multiply_with_bug<GemmBug::kGlobalWrite>(p); }

}  // namespace
}  // namespace pb::cuda
