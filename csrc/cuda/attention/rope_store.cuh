// Norms and rotary positions of heads, and the store of a position's key and value. A warp has one
// head of one row; lane l has the pairs (x[i], x[i + half]) for i = l, l + 32, ...
#pragma once

#include "cuda/attention/kv_numbers.cuh"
#include "cuda/attention/params_attention.h"

namespace pb::cuda {
namespace {

// The pairs of a lane, at most kMostPairs.
template <int kMostPairs>
struct HeadPairs {
  int lane;
  int half;  // head_dim / 2
  float low[kMostPairs];
  float high[kMostPairs];  // zero beyond half, as in low

  __device__ __forceinline__ int index(int j) const { return lane + 32 * j; }

  __device__ __forceinline__ void load(const float* head) {
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      low[j] = index(j) < half ? head[index(j)] : 0.0f;
      high[j] = index(j) < half ? head[half + index(j)] : 0.0f;
    }
  }

  // x = (x - mean) / sqrt(mean of squares + eps) * weight + bias. The root mean square norm has no
  // mean and no bias.
  __device__ __forceinline__ void normalise(const HeadNorm& norm) {
    const float n = static_cast<float>(2 * half);
    if (norm.layer_norm != 0) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kMostPairs; ++j) sum += low[j] + high[j];
      const float mean = warp_sum(sum) / n;
#pragma unroll
      for (int j = 0; j < kMostPairs; ++j) {
        if (index(j) >= half) continue;
        low[j] -= mean;
        high[j] -= mean;
      }
    }
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      squares = __fmaf_rn(low[j], low[j], squares);
      squares = __fmaf_rn(high[j], high[j], squares);
    }
    const float factor = 1.0f / sqrtf(warp_sum(squares) / n + norm.eps);
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      if (index(j) >= half) continue;
      low[j] = low[j] * factor * norm.weight[index(j)];
      high[j] = high[j] * factor * norm.weight[half + index(j)];
      if (norm.layer_norm != 0) {
        low[j] += norm.bias[index(j)];
        high[j] += norm.bias[half + index(j)];
      }
    }
  }

  // Rotates pair i by the angle with the index angle_of(i) (Su et al., "RoFormer", 2021; the
  // half-split order of Hugging Face). Every product and sum is rounded separately.
  template <typename AngleOf>
  __device__ __forceinline__ void rotate(const float* cosines, const float* sines,
                                         AngleOf angle_of) {
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      if (index(j) >= half) continue;
      const float a = low[j];
      const float b = high[j];
      const int64_t angle = angle_of(index(j));
      const float c = cosines[angle];
      const float s = sines[angle];
      low[j] = a * c - b * s;
      high[j] = b * c + a * s;
    }
  }

  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      if (index(j) >= half) continue;
      to[index(j)] = low[j];
      to[half + index(j)] = high[j];
    }
  }

  // Stores numbers rounded by kPack, two at a time.
  template <unsigned (*kPack)(float, float)>
  __device__ __forceinline__ void store_rounded(uint16_t* to) const {
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      if (index(j) >= half) continue;
      const unsigned both = kPack(low[j], high[j]);
      to[index(j)] = static_cast<uint16_t>(both);
      to[half + index(j)] = static_cast<uint16_t>(both >> 16);
    }
  }

  // Stores whole numbers, with the greatest magnitude over 127 as the scale. The scale is NaN if a
  // number is not finite, so that the failure of a sequence stays visible.
  __device__ __forceinline__ void store_int8(int8_t* to, float* scale_to) const {
    float top = 0.0f;
    float nothing = 0.0f;  // becomes NaN if a number is infinite or NaN
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      const float a = low[j] < 0.0f ? -low[j] : low[j];
      const float b = high[j] < 0.0f ? -high[j] : high[j];
      top = a > top ? a : top;
      top = b > top ? b : top;
      nothing += 0.0f * a + 0.0f * b;
    }
    const float scale = warp_max(top) / 127.0f + warp_sum(nothing);
    const float divisor = scale > 0.0f ? scale : 1.0f;
    if (lane == 0) *scale_to = scale;
#pragma unroll
    for (int j = 0; j < kMostPairs; ++j) {
      if (index(j) >= half) continue;
      to[index(j)] = nearest(low[j] / divisor);
      to[half + index(j)] = nearest(high[j] / divisor);
    }
  }

  // Returns the nearest whole number in [-127, 127], ties to even; NaN gives 127.
  __device__ __forceinline__ static int8_t nearest(float x) {
    x = x < 127.0f ? x : 127.0f;
    x = x > -127.0f ? x : -127.0f;
    return static_cast<int8_t>(static_cast<int>((x + 12582912.0f) - 12582912.0f));
  }
};

struct F32Store {
  template <typename Pairs>
  static __device__ __forceinline__ void store(const Pairs& x, const KvLayer& kv, int64_t row) {
    x.store(static_cast<float*>(kv.numbers) + row * kv.head_dim);
  }
};
template <typename Kv>
struct RoundedStore {
  template <typename Pairs>
  static __device__ __forceinline__ void store(const Pairs& x, const KvLayer& kv, int64_t row) {
    x.template store_rounded<Kv::pack>(static_cast<uint16_t*>(kv.numbers) + row * kv.head_dim);
  }
};
struct Int8Store {
  template <typename Pairs>
  static __device__ __forceinline__ void store(const Pairs& x, const KvLayer& kv, int64_t row) {
    x.store_int8(static_cast<int8_t*>(kv.numbers) + row * kv.head_dim, kv.scales + row);
  }
};

// The grid is rows, of which there may be fewer, by groups of four of the computed heads.
template <typename Store, int kPaddedDim>
__device__ __forceinline__ void rope_and_store(const RopeStoreParams& p) {
  const int row = static_cast<int>(blockIdx.x);
  const int n_kv_heads = p.kv.n_kv_heads;
  const int n_all = p.n_heads + 2 * n_kv_heads;
  const int head = static_cast<int>(blockIdx.y * (kRopeThreads / 32) + threadIdx.x / 32);
  if (row >= *p.n_rows || head >= p.n_computed) return;
  const bool is_q = head < p.n_heads;
  const bool is_v = head >= p.n_heads + n_kv_heads;
  const AttentionRow at = p.rows[row];

  float* const numbers = p.qkv + (static_cast<int64_t>(row) * n_all + head) * p.kv.head_dim;
  HeadPairs<kPaddedDim / 64> x;
  x.lane = static_cast<int>(threadIdx.x) % 32;
  x.half = p.kv.head_dim / 2;
  x.load(numbers);
  const HeadNorm& norm = is_q ? p.q_norm : is_v ? p.v_norm : p.k_norm;
  const bool norms_last = p.norms_last != 0 && !is_v;
  if (norm.weight != nullptr && !norms_last) x.normalise(norm);
  if (!is_v && p.cosines != nullptr) {
    const int32_t* const positions = p.rope_positions + static_cast<int64_t>(row) * kRopePositions;
    x.rotate(is_q ? p.q_cosines : p.cosines, is_q ? p.q_sines : p.sines, [&](int i) {
      const int position = p.axes == nullptr ? at.position : positions[p.axes[i]];
      return static_cast<int64_t>(position) * x.half + i;
    });
  }
  if (norm.weight != nullptr && norms_last) x.normalise(norm);
  if (is_q) {
    x.store(numbers);
    return;
  }
  const int64_t block = at.slot >> p.kv.block_shift;
  const int slot = at.slot & ((1 << p.kv.block_shift) - 1);
  const int kv_head = head - p.n_heads - (is_v ? n_kv_heads : 0);
  const int64_t heads = (2 * block + (is_v ? 1 : 0)) * n_kv_heads + kv_head;
  Store::store(x, p.kv, (heads << p.kv.block_shift) + slot);
}

#define PB_ROPE_STORE(kv, Store)                                                               \
  PB_KERNEL(rope_store_##kv, RopeStoreParams, kRopeThreads) { rope_and_store<Store, 256>(p); } \
  PB_KERNEL(rope_store_##kv##_512, RopeStoreParams, kRopeThreads) { rope_and_store<Store, 512>(p); }

PB_ROPE_STORE(f32, F32Store)
PB_ROPE_STORE(bf16, RoundedStore<Bf16Kv>)
PB_ROPE_STORE(f16, RoundedStore<F16Kv>)
PB_ROPE_STORE(int8, Int8Store)

#undef PB_ROPE_STORE

}  // namespace
}  // namespace pb::cuda
