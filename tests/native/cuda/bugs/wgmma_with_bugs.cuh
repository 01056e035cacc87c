// y = x W^T on wgmma, loaded by cp.async in two stages; with one of these bugs planted.
#pragma once

#include "cuda/device_code/swizzle.h"
#include "cuda/device_code/wgmma.h"

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
  const __nv_bfloat16* w;  // (128, k)
  float* y;                // (64, 128)
  int k;                   // a multiple of 64
};

constexpr int kRowBytes = 128;
constexpr int kStageBytes = (64 + 128) * kRowBytes;  // x, then w

template <typename Arrays>
PB_HOST_DEVICE unsigned char* take_wgmma_tiles(Arrays& arrays) {
  return arrays.template take<unsigned char>(2 * kStageBytes, kWgmmaAlignment);
}

// 128 threads; shared memory as take_wgmma_tiles says.
template <WgmmaBug kBug>
__device__ __forceinline__ void multiply_by_wgmma(const WgmmaParams& p) {
#ifdef PB_HAS_WGMMA
  SharedArrays arrays;
  unsigned char* const shared = take_wgmma_tiles(arrays);
  const int thread = static_cast<int>(threadIdx.x);
  const auto load = [&](int step) {
    unsigned char* const stage = shared + step % 2 * kStageBytes;
    for (int i = thread; i < (64 + 128) * 8; i += 128) {
      const int row = i / 8;  // of x, then of w
      const __nv_bfloat16* const from = row < 64 ? p.x + row * p.k : p.w + (row - 64) * p.k;
      cp_async_16(stage + swizzled<kRowBytes>(row, i % 8), from + step * 64 + i % 8 * 8, 16);
    }
  };

  float sums[64] = {};
  const int n_steps = p.k / 64;
  load(0);
  cp_async_commit();
  for (int step = 0; step < n_steps; ++step) {
    if (step + 1 < n_steps) load(step + 1);
    cp_async_commit();
    cp_async_wait<1>();
    if (kBug != WgmmaBug::kNoProxyFence) fence_for_async_proxy();
    __syncthreads();
    const unsigned char* const x = shared + step % 2 * kStageBytes;
    const unsigned char* const w = x + 64 * kRowBytes;
    wgmma_fence(sums);
    for (int byte = 0; byte < kRowBytes; byte += 32) {
      wgmma_m64n128k16(sums, wgmma_operand(x + byte), wgmma_operand(w + byte));
    }
    wgmma_commit();
    if (kBug == WgmmaBug::kLoadsTooEarly) {
      wgmma_wait<1>(sums);
    } else if (kBug != WgmmaBug::kNoWait) {
      wgmma_wait<0>(sums);
    }
    __syncthreads();
  }
  cp_async_wait<0>();
  if (kBug == WgmmaBug::kLoadsTooEarly) wgmma_wait<0>(sums);

  const int row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 64; ++i) {
    p.y[(row + i / 2 % 2 * 8) * 128 + i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[i];
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
