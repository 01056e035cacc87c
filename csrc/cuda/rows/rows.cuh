// Kernels that process rows: RMSNorm, LayerNorm, rounding, activations.
//
// In the sums of a norm, thread i % kNormThreads adds number i, in ascending order; lanes are added
// by a fixed tree, then warps in ascending order. So the order depends on `hidden` alone.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/rows/activation.cuh"
#include "cuda/rows/params_rows.h"

namespace pb::cuda {
namespace {

__device__ __forceinline__ void store_number(float* out, int64_t at, float v) { out[at] = v; }
__device__ __forceinline__ void store_number(__nv_bfloat16* out, int64_t at, float v) {
  out[at] = __float2bfloat16_rn(v);
}

using NormWarps = float[kNormThreads / 32];  // shared by a block: a sum for each warp

// The numbers of a row that a thread loads at a time. If there are few rows, nothing else hides the
// latency of loads.
constexpr int kNormBatch = 8;

// Calls get(i, j), and then put(i, j), for each of the thread's numbers i below n, where j is the
// index in a batch. `get` loads and `put` stores: all loads of a batch precede its stores.
template <typename Get, typename Put>
__device__ __forceinline__ void in_batches(int n, Get get, Put put) {
  constexpr int kThreads = static_cast<int>(kNormThreads);
  for (int first = static_cast<int>(threadIdx.x); first < n; first += kNormBatch * kThreads) {
#pragma unroll
    for (int j = 0; j < kNormBatch; ++j) {
      if (first + j * kThreads < n) get(first + j * kThreads, j);
    }
#pragma unroll
    for (int j = 0; j < kNormBatch; ++j) {
      if (first + j * kThreads < n) put(first + j * kThreads, j);
    }
  }
}

__device__ __forceinline__ float sum_of_squares(const float* x, int n) {
  float squares = 0.0f;
  float v[kNormBatch];
  in_batches(
      n, [&](int i, int j) { v[j] = x[i]; },
      [&](int, int j) { squares = __fmaf_rn(v[j], v[j], squares); });
  return squares;
}

// Returns the sum of all threads' v; every thread gets it.
__device__ __forceinline__ float norm_sum(float v, NormWarps& warps) {
  v = warp_sum(v);
  __syncthreads();  // all threads have read the previous sum
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = warps[0];
  for (unsigned w = 1; w < kNormThreads / 32; ++w) sum += warps[w];
  return sum;
}

template <typename T>
__device__ __forceinline__ void clear_padding(const NormParams& p, T* out) {
  for (int64_t i = p.hidden + static_cast<int>(threadIdx.x); i < p.row_stride; i += kNormThreads) {
    store_number(out, i, 0.0f);
  }
}

// out = x / sqrt(mean(x^2) + eps) * weight
template <typename T>
__device__ __forceinline__ void rms_norm(const NormParams& p, NormWarps& warps) {
  const float* x = p.x + static_cast<int64_t>(p.rows[blockIdx.x]) * p.hidden;
  const float mean = norm_sum(sum_of_squares(x, p.hidden), warps) / static_cast<float>(p.hidden);
  const float factor = 1.0f / sqrtf(mean + p.eps);
  T* out = static_cast<T*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.row_stride;
  float v[kNormBatch];
  float weight[kNormBatch];
  in_batches(
      p.hidden,
      [&](int i, int j) {
        v[j] = x[i];
        weight[j] = p.weight[i];
      },
      [&](int i, int j) { store_number(out, i, v[j] * factor * weight[j]); });
  clear_padding(p, out);
}

// out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
template <typename T>
__device__ __forceinline__ void layer_norm(const NormParams& p, NormWarps& warps) {
  const int t = static_cast<int>(threadIdx.x);
  const float* x = p.x + static_cast<int64_t>(p.rows[blockIdx.x]) * p.hidden;
  float sum = 0.0f;
  for (int i = t; i < p.hidden; i += kNormThreads) sum += x[i];
  const float mean = norm_sum(sum, warps) / static_cast<float>(p.hidden);
  float squares = 0.0f;
  for (int i = t; i < p.hidden; i += kNormThreads) {
    squares = __fmaf_rn(x[i] - mean, x[i] - mean, squares);
  }
  const float variance = norm_sum(squares, warps) / static_cast<float>(p.hidden);
  const float factor = 1.0f / sqrtf(variance + p.eps);
  T* out = static_cast<T*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.row_stride;
  for (int i = t; i < p.hidden; i += kNormThreads) {
    store_number(out, i, __fmaf_rn((x[i] - mean) * factor, p.weight[i], p.bias[i]));
  }
  clear_padding(p, out);
}

template <typename T>
__device__ __forceinline__ void round_row(const RoundParams& p) {
  const float* x = p.x + static_cast<int64_t>(blockIdx.x) * p.cols;
  T* out = static_cast<T*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.row_stride;
  for (int64_t i = static_cast<int>(threadIdx.x); i < p.row_stride; i += kRoundThreads) {
    store_number(out, i, i < p.cols ? x[i] : 0.0f);
  }
}

template <typename T>
__device__ __forceinline__ void permute_row(const PermuteParams& p) {
  const float* x = p.x + static_cast<int64_t>(blockIdx.x) * p.x_stride;
  T* out = static_cast<T*>(p.out) + static_cast<int64_t>(blockIdx.x) * p.row_stride;
  for (int64_t i = static_cast<int>(threadIdx.x); i < p.row_stride; i += kRoundThreads) {
    store_number(out, i, i < p.cols ? x[p.order[i]] : 0.0f);
  }
}

__device__ __forceinline__ void give_row(const GiveRowsParams& p) {
  const float* from = p.values + static_cast<int64_t>(blockIdx.x) * p.stride;
  float* x = p.x + static_cast<int64_t>(p.rows[blockIdx.x]) * p.columns;
  for (int i = static_cast<int>(threadIdx.x); i < p.columns; i += kGiveRowsThreads) {
    x[i] = p.adds != 0 ? x[i] + from[i] : from[i];
  }
}

template <typename T, typename Act>
__device__ __forceinline__ void activate_by(const ActivateParams& p, const Act& act) {
  const int64_t row = blockIdx.x;
  const float* gate = p.gate + row * p.gate_stride;
  const float* up = p.up == nullptr ? nullptr : p.up + row * p.up_stride;
  T* out = static_cast<T*>(p.out) + row * p.row_stride;
  const int64_t first = int64_t{blockIdx.y} * kActivateThreads * kActivatedPerThread + threadIdx.x;
  float gates[kActivatedPerThread];
  float ups[kActivatedPerThread];
#pragma unroll
  for (int k = 0; k < kActivatedPerThread; ++k) {  // all loads are issued before the first use
    const int64_t i = first + k * kActivateThreads;
    gates[k] = i < p.cols ? gate[i] : 0.0f;
    ups[k] = i < p.cols && up != nullptr ? up[i] : 1.0f;
  }
#pragma unroll
  for (int k = 0; k < kActivatedPerThread; ++k) {
    const int64_t i = first + k * kActivateThreads;
    if (i < p.row_stride) store_number(out, i, i < p.cols ? act(gates[k]) * ups[k] : 0.0f);
  }
}

template <float (*kAct)(float), typename T>
__device__ __forceinline__ void activate(const ActivateParams& p) {
  activate_by<T>(p, [](float x) { return kAct(x); });
}

template <typename T>
__device__ __forceinline__ void xielu_row(const XieluParams& p) {
  activate_by<T>(p.rows, [&p](float x) { return xielu(x, p.of_layer); });
}

PB_KERNEL(rms_norm_bf16, NormParams, kNormThreads) {
  __shared__ NormWarps warps;
  rms_norm<__nv_bfloat16>(p, warps);
}

PB_KERNEL(rms_norm_f32, NormParams, kNormThreads) {
  __shared__ NormWarps warps;
  rms_norm<float>(p, warps);
}

PB_KERNEL(layer_norm_bf16, NormParams, kNormThreads) {
  __shared__ NormWarps warps;
  layer_norm<__nv_bfloat16>(p, warps);
}

PB_KERNEL(layer_norm_f32, NormParams, kNormThreads) {
  __shared__ NormWarps warps;
  layer_norm<float>(p, warps);
}

template <bool kScales>
__device__ __forceinline__ void rms_norm_rows_of(const NormRowsParams& p, NormWarps& warps) {
  const float* y = p.y + static_cast<int64_t>(blockIdx.x) * p.y_stride;
  float* out = p.out + static_cast<int64_t>(blockIdx.x) * p.out_stride;
  const float mean = norm_sum(sum_of_squares(y, p.hidden), warps) / static_cast<float>(p.hidden);
  const float factor = 1.0f / sqrtf(mean + p.eps);
  float v[kNormBatch];
  float weight[kNormBatch];
  float before[kNormBatch];
  in_batches(
      p.hidden,
      [&](int i, int j) {
        v[j] = y[i] * factor;
        weight[j] = p.weight[i];
        if (p.adds != 0) before[j] = out[i];
      },
      [&](int i, int j) {
        const float sum = p.adds != 0 ? __fmaf_rn(v[j], weight[j], before[j]) : v[j] * weight[j];
        out[i] = kScales ? sum * p.scale : sum;
      });
}

PB_KERNEL(rms_norm_rows, NormRowsParams, kNormThreads) {
  __shared__ NormWarps warps;
  rms_norm_rows_of<false>(p, warps);
}

PB_KERNEL(rms_norm_rows_scaled, NormRowsParams, kNormThreads) {
  __shared__ NormWarps warps;
  rms_norm_rows_of<true>(p, warps);
}

PB_KERNEL(round_rows_bf16, RoundParams, kRoundThreads) { round_row<__nv_bfloat16>(p); }
PB_KERNEL(round_rows_f32, RoundParams, kRoundThreads) { round_row<float>(p); }

PB_KERNEL(permute_rows_bf16, PermuteParams, kRoundThreads) { permute_row<__nv_bfloat16>(p); }
PB_KERNEL(permute_rows_f32, PermuteParams, kRoundThreads) { permute_row<float>(p); }

PB_KERNEL(give_rows, GiveRowsParams, kGiveRowsThreads) { give_row(p); }

PB_KERNEL(silu_bf16, ActivateParams, kActivateThreads) { activate<silu, __nv_bfloat16>(p); }
PB_KERNEL(silu_f32, ActivateParams, kActivateThreads) { activate<silu, float>(p); }
PB_KERNEL(gelu_tanh_bf16, ActivateParams, kActivateThreads) {
  activate<gelu_tanh, __nv_bfloat16>(p);
}
PB_KERNEL(gelu_tanh_f32, ActivateParams, kActivateThreads) { activate<gelu_tanh, float>(p); }
PB_KERNEL(gelu_bf16, ActivateParams, kActivateThreads) { activate<gelu, __nv_bfloat16>(p); }
PB_KERNEL(gelu_f32, ActivateParams, kActivateThreads) { activate<gelu, float>(p); }
PB_KERNEL(relu_squared_bf16, ActivateParams, kActivateThreads) {
  activate<relu_squared, __nv_bfloat16>(p);
}
PB_KERNEL(relu_squared_f32, ActivateParams, kActivateThreads) { activate<relu_squared, float>(p); }
PB_KERNEL(sigmoid_bf16, ActivateParams, kActivateThreads) { activate<sigmoid, __nv_bfloat16>(p); }
PB_KERNEL(sigmoid_f32, ActivateParams, kActivateThreads) { activate<sigmoid, float>(p); }
PB_KERNEL(xielu_bf16, XieluParams, kActivateThreads) { xielu_row<__nv_bfloat16>(p); }
PB_KERNEL(xielu_f32, XieluParams, kActivateThreads) { xielu_row<float>(p); }

}  // namespace
}  // namespace pb::cuda
