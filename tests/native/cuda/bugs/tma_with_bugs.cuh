// y = x W^T on wgmma, whose tiles one thread has copied by tensor maps, in two stages; with one of
// these bugs planted.
#pragma once

#include "cuda/device_code/tma.h"

namespace pb::cuda {
namespace {

enum class TmaBug {
  kNone,
  kNoExpect,           // the copying thread arrives and expects no bytes
  kTooFewBytes,        // it expects the bytes of one tile, of two
  kTooManyBytes,       // it expects more than are copied
  kWrongPhase,         // the others wait for the phase before
  kNoEmpty,            // stages are filled again whether they are empty or not
  kGivenBackTooEarly,  // stages are given back while products are under way
  kNoFence,            // barriers are made without a fence after it
  kNoBarrierAfterMaking,
  kMadeTwice,
  kWrongCoordinates,  // row and column of a tile are taken for each other
  kNoWait,            // the last stage is not waited for
};

struct TmaParams {
  TensorMap x;  // (64, k), boxes of 64 rows
  TensorMap w;  // (128, k), boxes of 128 rows
  float* y;     // (64, 128)
  int k;        // a multiple of 64
};

constexpr int kTmaStageBytes = (64 + 128) * 128;  // x, then w

struct TmaArrays {
  unsigned char* stages;
  uint64_t* full;   // (2)
  uint64_t* empty;  // (2)
};
template <typename Arrays>
PB_HOST_DEVICE TmaArrays take_tma_arrays(Arrays& arrays) {
  return {arrays.template take<unsigned char>(2 * kTmaStageBytes, kWgmmaAlignment),
          arrays.template take<uint64_t>(2, 8), arrays.template take<uint64_t>(2, 8)};
}

template <TmaBug kBug>
__device__ __forceinline__ void fill_stages(const TmaParams& p, const TmaArrays& shared) {
  unsigned bytes = kBug == TmaBug::kTooFewBytes ? 64 * 128 : kTmaStageBytes;
  if (kBug == TmaBug::kTooManyBytes) bytes += 16;
  for (int step = 0; step < p.k / 64; ++step) {
    const int s = step % 2;
    const unsigned parity = static_cast<unsigned>(step / 2) & 1;
    if (kBug != TmaBug::kNoEmpty) mbarrier_wait(shared.empty + s, parity ^ 1);
    if (kBug == TmaBug::kNoExpect) {
      mbarrier_arrive(shared.full + s);
    } else {
      mbarrier_arrive_expect(shared.full + s, bytes);
    }
    unsigned char* const x = shared.stages + s * kTmaStageBytes;
    const bool turned = kBug == TmaBug::kWrongCoordinates;
    tma_copy(x, p.x, turned ? 0 : step * 64, turned ? step * 64 : 0, shared.full + s);
    tma_copy(x + 64 * 128, p.w, step * 64, 0, shared.full + s);
  }
}

// 160 threads: a warpgroup multiplies, one thread of another warp has tiles copied.
template <TmaBug kBug>
__device__ __forceinline__ void multiply_by_tma(const TmaParams& p) {
#ifdef PB_HAS_WGMMA
  SharedArrays arrays;
  const TmaArrays shared = take_tma_arrays(arrays);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 128) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(shared.full + i, 1);
      mbarrier_init(shared.empty + i, 4);
      if (kBug == TmaBug::kMadeTwice) mbarrier_init(shared.full + i, 1);
    }
    if (kBug != TmaBug::kNoFence) fence_for_async_proxy();
  }
  if (kBug != TmaBug::kNoBarrierAfterMaking) __syncthreads();
  if (thread >= 128) {
    if (thread == 128) fill_stages<kBug>(p, shared);
    return;
  }
  float sums[64] = {};
  const int n_steps = p.k / 64;
  for (int step = 0; step < n_steps; ++step) {
    const int s = step % 2;
    const unsigned parity = static_cast<unsigned>(step / 2) & 1;
    const bool waits = kBug != TmaBug::kNoWait || step + 1 < n_steps;
    if (waits) mbarrier_wait(shared.full + s, parity ^ (kBug == TmaBug::kWrongPhase ? 1 : 0));
    const unsigned char* const x = shared.stages + s * kTmaStageBytes;
    wgmma_fence(sums);
    for (int byte = 0; byte < 128; byte += 32) {
      wgmma_m64n128k16(sums, wgmma_operand(x + byte), wgmma_operand(x + 64 * 128 + byte));
    }
    wgmma_commit();
    if (kBug != TmaBug::kGivenBackTooEarly) wgmma_wait<0>(sums);
    __syncwarp();
    if (thread % 32 == 0) mbarrier_arrive(shared.empty + s);
    if (kBug == TmaBug::kGivenBackTooEarly) wgmma_wait<0>(sums);
  }
  const int row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < 64; ++i) {
    p.y[(row + i / 2 % 2 * 8) * 128 + i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[i];
  }
#endif
}

PB_KERNEL(tma, TmaParams, 160) { multiply_by_tma<TmaBug::kNone>(p); }
PB_KERNEL(tma_no_expect, TmaParams, 160) { multiply_by_tma<TmaBug::kNoExpect>(p); }
PB_KERNEL(tma_too_few_bytes, TmaParams, 160) { multiply_by_tma<TmaBug::kTooFewBytes>(p); }
PB_KERNEL(tma_too_many_bytes, TmaParams, 160) { multiply_by_tma<TmaBug::kTooManyBytes>(p); }
PB_KERNEL(tma_wrong_phase, TmaParams, 160) { multiply_by_tma<TmaBug::kWrongPhase>(p); }
PB_KERNEL(tma_no_empty, TmaParams, 160) { multiply_by_tma<TmaBug::kNoEmpty>(p); }
PB_KERNEL(tma_given_back_too_early, TmaParams, 160) {
  multiply_by_tma<TmaBug::kGivenBackTooEarly>(p);
}
PB_KERNEL(tma_no_fence, TmaParams, 160) { multiply_by_tma<TmaBug::kNoFence>(p); }
PB_KERNEL(tma_no_barrier_after_making, TmaParams, 160) {
  multiply_by_tma<TmaBug::kNoBarrierAfterMaking>(p);
}
PB_KERNEL(tma_made_twice, TmaParams, 160) { multiply_by_tma<TmaBug::kMadeTwice>(p); }
PB_KERNEL(tma_wrong_coordinates, TmaParams, 160) { multiply_by_tma<TmaBug::kWrongCoordinates>(p); }
PB_KERNEL(tma_no_wait, TmaParams, 160) { multiply_by_tma<TmaBug::kNoWait>(p); }
// By maps that do not swizzle, which the host makes.
PB_KERNEL(tma_unswizzled, TmaParams, 160) { multiply_by_tma<TmaBug::kNone>(p); }
PB_KERNEL(tma_map_of_nobody, TmaParams, 160) { multiply_by_tma<TmaBug::kNone>(p); }

}  // namespace
}  // namespace pb::cuda
