// y = x W^T on wgmma, loaded by cp.async in two stages; with one of these bugs planted.
#pragma once

#include "cuda/kernels/wgmma.h"

namespace pb::cuda {
namespace {

enum class WgmmaBug {
  kNone,
  kNoProxyFence,   // wgmma reads what cp.async wrote without a fence between them
  kNoWait,         // accumulators are read while products are under way
  kLoadsTooEarly,  // operands are overwritten while products are under way
};

struct WgmmaParams {
  const __nv_bfloat16* x;  // (64, k)
  const __nv_bfloat16* w;  // (64, k)
  float* y;                // (64, 64)
  int k;                   // a multiple of 64
};

constexpr int kWgmmaTile = 64 * 64;
constexpr int kWgmmaAlignment = 1024;  // of the swizzle

template <typename Arrays>
PB_HOST_DEVICE __nv_bfloat16* take_wgmma_tiles(Arrays& arrays) {
  return arrays.template take<__nv_bfloat16>(4 * kWgmmaTile, kWgmmaAlignment);
}

// 128 threads; shared memory as take_wgmma_tiles says.
template <WgmmaBug kBug>
__device__ __forceinline__ void multiply_by_wgmma(const WgmmaParams& p) {
#ifdef PB_HAS_WGMMA
  SharedArrays arrays;
  __nv_bfloat16* const shared = take_wgmma_tiles(arrays);
  const int thread = static_cast<int>(threadIdx.x);
  const auto load = [&](int step) {
    __nv_bfloat16* const stage = shared + step % 2 * 2 * kWgmmaTile;
    for (int i = thread; i < 64 * 8; i += 128) {
      const int row = i / 8;
      const int column = i % 8 * 8;
      const int from = row * p.k + step * 64 + column;
      cp_async_16(stage + swizzled(row, column), p.x + from, 16);
      cp_async_16(stage + kWgmmaTile + swizzled(row, column), p.w + from, 16);
    }
  };

  float sums[32] = {};
  const int n_steps = p.k / 64;
  load(0);
  cp_async_commit();
  for (int step = 0; step < n_steps; ++step) {
    if (step + 1 < n_steps) load(step + 1);
    cp_async_commit();
    cp_async_wait<1>();
    if (kBug != WgmmaBug::kNoProxyFence) fence_for_async_proxy();
    __syncthreads();
    const __nv_bfloat16* const stage = shared + step % 2 * 2 * kWgmmaTile;
    wgmma_fence();
    for (int k = 0; k < 64; k += 16) {
      wgmma_m64n64k16(sums, wgmma_tile(stage + k), wgmma_tile(stage + kWgmmaTile + k));
    }
    wgmma_commit();
    if (kBug == WgmmaBug::kLoadsTooEarly) {
      wgmma_wait<1>();
    } else if (kBug != WgmmaBug::kNoWait) {
      wgmma_wait<0>();
    }
    __syncthreads();
  }
  cp_async_wait<0>();
  if (kBug == WgmmaBug::kLoadsTooEarly) wgmma_wait<0>();

  const int row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 32; ++i) {
    p.y[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[i];
  }
#endif
}

PB_KERNEL(wgmma, WgmmaParams, 128) { multiply_by_wgmma<WgmmaBug::kNone>(p); }
PB_KERNEL(wgmma_no_proxy_fence, WgmmaParams, 128) { multiply_by_wgmma<WgmmaBug::kNoProxyFence>(p); }
PB_KERNEL(wgmma_no_wait, WgmmaParams, 128) { multiply_by_wgmma<WgmmaBug::kNoWait>(p); }
PB_KERNEL(wgmma_loads_too_early, WgmmaParams, 128) {
  multiply_by_wgmma<WgmmaBug::kLoadsTooEarly>(p);
}

}  // namespace
}  // namespace pb::cuda
