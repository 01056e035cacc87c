// Softmax attention of four queries over up to 64 positions, scores in static shared memory; with
// one of these bugs planted.
#pragma once

#include "cuda/device_code/device_code.h"

namespace pb::cuda {
namespace {

enum class AttentionBug {
  kNone,
  kNoBarrierScores,  // scores are read before other warps have written them
  kShuffleOrders,    // relies on a shuffle to order accesses to shared memory
  kStaticBounds,     // reads behind the end of static shared memory
  kUnwritten,        // reads shared memory that nobody has written
};

constexpr int kQueries = 4;
constexpr int kPositions = 64;
constexpr int kDim = 32;

struct AttentionParams {
  const float* q;       // (kQueries, kDim)
  const float* keys;    // (n, kDim)
  const float* values;  // (n, kDim)
  int n;                // at most kPositions
  float* out;           // (kQueries, kDim)
};

// 128 threads: a warp a query, and before that a warp every fourth position.
template <AttentionBug kBug>
__device__ __forceinline__ void attend_with_bug(const AttentionParams& p) {
  __shared__ float scores[kQueries][kPositions];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int i = warp; i < p.n; i += 4) {
    const float key = p.keys[i * kDim + lane];
    for (int query = 0; query < kQueries; ++query) {
      const float dot = warp_sum(p.q[query * kDim + lane] * key);
      if (lane == 0) scores[query][i] = dot;
    }
  }
  if (kBug != AttentionBug::kNoBarrierScores) __syncthreads();

  float* const own = scores[warp];
  const int n_read = kBug == AttentionBug::kUnwritten ? p.n + 1 : p.n;
  float greatest = own[0];
  for (int i = lane; i < n_read; i += 32) greatest = own[i] > greatest ? own[i] : greatest;
  if (kBug == AttentionBug::kStaticBounds)
    greatest = fmaxf(greatest, 0.0f * own[lane + kPositions]);
  greatest = warp_max(greatest);
  if (kBug != AttentionBug::kShuffleOrders) __syncwarp();  // all have read the first score
  float sum = 0.0f;
  for (int i = lane; i < n_read; i += 32) {
    own[i] = exp_of(own[i] - greatest);
    sum += own[i];
  }
  sum = warp_sum(sum);
  __syncwarp();

  float out = 0.0f;
  for (int i = 0; i < n_read; ++i) {
    const int at = i < p.n ? i : 0;
    out = __fmaf_rn(own[i], p.values[at * kDim + lane], out);
  }
  p.out[warp * kDim + lane] = out / sum;
}

PB_KERNEL(attention, AttentionParams, 128) { attend_with_bug<AttentionBug::kNone>(p); }
PB_KERNEL(attention_no_barrier_scores, AttentionParams, 128) {
  attend_with_bug<AttentionBug::kNoBarrierScores>(p);
}
PB_KERNEL(attention_shuffle_orders, AttentionParams, 128) {
  attend_with_bug<AttentionBug::kShuffleOrders>(p);
}
PB_KERNEL(attention_static_bounds, AttentionParams, 128) {
  attend_with_bug<AttentionBug::kStaticBounds>(p);
}
PB_KERNEL(attention_unwritten, AttentionParams, 128) {
  attend_with_bug<AttentionBug::kUnwritten>(p);
}

}  // namespace
}  // namespace pb::cuda
