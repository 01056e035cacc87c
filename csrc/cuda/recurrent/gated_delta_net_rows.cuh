// The row operations before and after the gated delta rule: convolutions, normalisation of queries
// and keys to unit length, gates; and the norm of the results.
//
// A warp handles a head. Lane l has numbers l, l + 32 ..., which it adds in ascending order; lanes
// are added by a fixed tree.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/recurrent/params_recurrent.h"
#include "cuda/rows/activation.cuh"

namespace pb::cuda {
namespace {

constexpr float kUnitEps = 1e-6f;
constexpr int kLaneNumbers = kMostKeyDim / 32;

// Returns log(1 + e^x). With e = e^-|x|: log(1 + e) = 2 atanh(s), s = e / (2 + e) <= 1/3. The terms
// of the series up to s^13 give a relative error of 2e-8 before rounding.
__device__ __forceinline__ float softplus(float x) {
  const float e = exp_of(x < 0.0f ? x : -x);
  const float s = e / (2.0f + e);
  const float s2 = s * s;
  float p = 1.0f / 13.0f;
  p = __fmaf_rn(p, s2, 1.0f / 11.0f);
  p = __fmaf_rn(p, s2, 1.0f / 9.0f);
  p = __fmaf_rn(p, s2, 1.0f / 7.0f);
  p = __fmaf_rn(p, s2, 1.0f / 5.0f);
  p = __fmaf_rn(p, s2, 1.0f / 3.0f);
  const float log_of = 2.0f * __fmaf_rn(p * s2, s, s);
  return x < 0.0f ? log_of : x + log_of;
}

// numbers[j] = silu(convolution) of channel + lane + 32 j, for n channels; 0 beyond them.
__device__ __forceinline__ void convolve(const GatedDeltaNetInputsParams& p, int channel, int n,
                                         float (&numbers)[kLaneNumbers]) {
  const GatedDeltaNetSizes& sizes = p.sizes;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = blockIdx.x;
  const StateRow of_row = p.rows[row];
#pragma unroll
  for (int j = 0; j < kLaneNumbers; ++j) numbers[j] = 0.0f;
  for (int tap = 0; tap < sizes.conv_size; ++tap) {
    const int before = sizes.conv_size - 1 - tap;
    const float* inputs;
    if (before <= of_row.n_before) {
      inputs = p.x + (row - before) * sizes.row_size();
    } else if (of_row.from >= 0) {
      const int64_t kept = tap + of_row.n_before;
      inputs = p.states.data + of_row.from * p.states.block_stride + sizes.history() +
               kept * sizes.n_channels();
    } else {
      continue;
    }
    const float* const weights = p.convolution + static_cast<int64_t>(tap) * sizes.n_channels();
#pragma unroll
    for (int j = 0; j < kLaneNumbers; ++j) {
      const int i = lane + 32 * j;
      if (i < n) numbers[j] = __fmaf_rn(inputs[channel + i], weights[channel + i], numbers[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kLaneNumbers; ++j) numbers[j] = silu(numbers[j]);
}

// Returns the dot product of two vectors.
__device__ __forceinline__ float dot(const float (&a)[kLaneNumbers],
                                     const float (&b)[kLaneNumbers]) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kLaneNumbers; ++j) sum = __fmaf_rn(a[j], b[j], sum);
  return warp_sum(sum);
}

__device__ __forceinline__ void make_unit(float (&numbers)[kLaneNumbers], float scale) {
  const float factor = 1.0f / sqrtf(dot(numbers, numbers) + kUnitEps) * scale;
#pragma unroll
  for (int j = 0; j < kLaneNumbers; ++j) numbers[j] *= factor;
}

__device__ __forceinline__ void put(const float (&numbers)[kLaneNumbers], int n, float* to) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < kLaneNumbers; ++j) {
    if (lane + 32 * j < n) to[lane + 32 * j] = numbers[j];
  }
}

__device__ __forceinline__ void make_query_and_key(const GatedDeltaNetInputsParams& p,
                                                   int key_head) {
  const GatedDeltaNetSizes& sizes = p.sizes;
  const int64_t row = blockIdx.x;
  float query[kLaneNumbers], key[kLaneNumbers];
  convolve(p, key_head * sizes.key_dim, sizes.key_dim, query);
  convolve(p, (sizes.n_key_heads + key_head) * sizes.key_dim, sizes.key_dim, key);
  make_unit(query, 1.0f / sqrtf(static_cast<float>(sizes.key_dim)));
  make_unit(key, 1.0f);
  const int64_t at = (row * sizes.n_key_heads + key_head) * sizes.key_stride;
  put(query, sizes.key_stride, p.scratch.queries + at);
  put(key, sizes.key_stride, p.scratch.keys + at);
  const float query_times_key = dot(query, key);
  for (int i = static_cast<int>(threadIdx.x % 32); i < sizes.heads_of_key(); i += 32) {
    const int64_t head = row * sizes.n_value_heads + sizes.value_head_of(key_head, i);
    p.scratch.gates[4 * head + 2] = query_times_key;
  }
}

__device__ __forceinline__ void make_value_and_gates(const GatedDeltaNetInputsParams& p, int head) {
  const GatedDeltaNetSizes& sizes = p.sizes;
  const int64_t row = blockIdx.x;
  const int64_t of_row = row * sizes.n_value_heads + head;
  const int channel = 2 * sizes.n_key_heads * sizes.key_dim + head * sizes.value_dim;
  for (int first = 0; first < sizes.value_dim; first += kMostKeyDim) {
    const int n = sizes.value_dim - first < kMostKeyDim ? sizes.value_dim - first : kMostKeyDim;
    float value[kLaneNumbers];
    convolve(p, channel + first, n, value);
    put(value, n, p.scratch.values + of_row * sizes.value_stride + first);
  }
  if (threadIdx.x % 32 != 0) return;
  const float* const gates =
      p.x + (row + 1) * sizes.row_size() - 2 * sizes.n_value_heads;  // b, then a
  const float exponent =
      p.decay[head] * softplus(gates[sizes.n_value_heads + head] + p.decay_bias[head]);
  float* const to = p.scratch.gates + 4 * of_row;
  // The exponent is not positive, unless a model file has unusual decays.
  to[0] = exponent > 0.0f ? 1.0f / exp_of(-exponent) : exp_of(exponent);
  to[1] = sigmoid(gates[head]);
  to[3] = 0.0f;
}

PB_KERNEL(delta_inputs, GatedDeltaNetInputsParams, kGatedDeltaNetRowThreads) {
  const int head = static_cast<int>((blockIdx.y * kGatedDeltaNetRowThreads + threadIdx.x) / 32);
  if (head < p.sizes.n_key_heads) {
    make_query_and_key(p, head);
  } else if (head < p.sizes.n_key_heads + p.sizes.n_value_heads) {
    make_value_and_gates(p, head - p.sizes.n_key_heads);
  }
}

PB_KERNEL(delta_outputs, GatedDeltaNetOutputsParams, kGatedDeltaNetRowThreads) {
  const GatedDeltaNetSizes& sizes = p.sizes;
  const int head = static_cast<int>((blockIdx.y * kGatedDeltaNetRowThreads + threadIdx.x) / 32);
  if (head >= sizes.n_value_heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t row = blockIdx.x;
  const int64_t of_row = row * sizes.n_value_heads + head;
  const float* const values = p.values + of_row * sizes.value_stride;
  const float* const z = p.x + row * sizes.row_size() + sizes.n_channels() + head * sizes.value_dim;
  float* const y = p.y + of_row * sizes.value_dim;
  float squares = 0.0f;
  for (int i = lane; i < sizes.value_dim; i += 32)
    squares = __fmaf_rn(values[i], values[i], squares);
  const float mean = warp_sum(squares) / static_cast<float>(sizes.value_dim);
  const float factor = 1.0f / sqrtf(mean + p.eps);
  for (int i = lane; i < sizes.value_dim; i += 32) {
    y[i] = values[i] * factor * p.weight[i] * silu(z[i]);
  }
}

}  // namespace
}  // namespace pb::cuda
