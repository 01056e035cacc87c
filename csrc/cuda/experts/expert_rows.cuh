// The row operations around the products of mixtures of experts: copies of rows for each pair, the
// clamped activation of gpt-oss, and the weighted sums of each row's experts and shared expert.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/experts/params_experts.h"
#include "cuda/rows/activation.cuh"
#include "cuda/rows/rows.cuh"

namespace pb::cuda {
namespace {

PB_KERNEL(gather_pairs, GatherPairsParams, kGatherPairsThreads) {
  const int n_chunks = p.row_bytes / static_cast<int>(sizeof(uint4));
  const int chunk = static_cast<int>(blockIdx.y * kGatherPairsThreads + threadIdx.x);
  if (chunk >= n_chunks) return;
  const int64_t row = blockIdx.x;
  const uint4 v = static_cast<const uint4*>(p.x)[row * n_chunks + chunk];
  for (int i = 0; i < p.n_per_row; ++i) {
    const int64_t pair = p.pairs[row * p.n_per_row + i];
    static_cast<uint4*>(p.out)[pair * n_chunks + chunk] = v;
  }
}

PB_KERNEL(combine_pairs, CombinePairsParams, kCombinePairsThreads) {
  const int column = static_cast<int>(blockIdx.y * kCombinePairsThreads + threadIdx.x);
  if (column >= p.hidden) return;
  const int64_t row = blockIdx.x;
  float sum = 0.0f;
  for (int i = 0; i < p.n_per_row; ++i) {
    const int64_t at = row * p.n_per_row + i;
    const float of_pair = p.y[static_cast<int64_t>(p.pairs[at]) * p.hidden + column];
    sum = __fmaf_rn(p.weights[at], of_pair, sum);
  }
  float* const x = p.x + row * p.hidden + column;
  *x = p.adds != 0 ? *x + sum : sum;
}

PB_KERNEL(add_shared, AddSharedParams, kCombinePairsThreads) {
  const int column = static_cast<int>(blockIdx.y * kCombinePairsThreads + threadIdx.x);
  if (column >= p.hidden) return;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * p.hidden + column;
  p.x[at] = __fmaf_rn(sigmoid(p.logits[blockIdx.x]), p.y[at], p.x[at]);
}

// Computes the activation of gpt-oss (OpenAI 2025, gpt-oss-120b & gpt-oss-20b model card,
// arXiv:2508.10925). Clamping keeps a NaN.
__device__ __forceinline__ float clamped_swiglu(float gate, float up, float alpha, float limit) {
  const float g = gate > limit ? limit : gate;
  const float most = up > limit ? limit : up;
  const float u = most < -limit ? -limit : most;
  return g * sigmoid(alpha * g) * (u + 1.0f);
}

template <typename T>
__device__ __forceinline__ void clamped_swiglu_row(const ClampedSwigluParams& p) {
  const int64_t row = blockIdx.x;
  const float* const gate = p.gate_up + row * 2 * p.cols;
  T* const out = static_cast<T*>(p.out) + row * p.row_stride;
  const unsigned first = blockIdx.y * kActivateThreads * kActivatedPerThread + threadIdx.x;
  for (int k = 0; k < kActivatedPerThread; ++k) {
    const int64_t i = first + static_cast<unsigned>(k) * kActivateThreads;
    if (i >= p.row_stride) return;
    const bool is_there = i < p.cols;
    store_number(out, i,
                 is_there ? clamped_swiglu(gate[i], gate[p.cols + i], p.alpha, p.limit) : 0.0f);
  }
}

PB_KERNEL(clamped_swiglu_bf16, ClampedSwigluParams, kActivateThreads) {
  clamped_swiglu_row<__nv_bfloat16>(p);
}
PB_KERNEL(clamped_swiglu_f32, ClampedSwigluParams, kActivateThreads) {
  clamped_swiglu_row<float>(p);
}

}  // namespace
}  // namespace pb::cuda
