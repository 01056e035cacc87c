// Soft caps, which bound scores and logits: x -> cap tanh(x / cap) (Gemma team 2024,
// arXiv:2408.00118).
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/rows/params_rows.h"

namespace pb::cuda {

// For |x| < 0.625, tanh is x + x^3 P(x^2), with P fitted to the least maximum relative error
// (4.4e-9). Beyond, it is 1 - 2 e / (1 + e), e = e^-2|x|, with the sign of x.
__device__ __forceinline__ float tanh_of(float x) {
  const float size = x < 0.0f ? -x : x;
  if (size < 0.625f) {
    const float x2 = x * x;
    float p = -5.704992e-3f;
    p = __fmaf_rn(p, x2, 2.063909e-2f);
    p = __fmaf_rn(p, x2, -5.373971e-2f);
    p = __fmaf_rn(p, x2, 1.3331442e-1f);
    p = __fmaf_rn(p, x2, -3.3333282e-1f);
    return __fmaf_rn(x2 * p, x, x);
  }
  const float e = exp_of(-2.0f * size);
  const float outer = 1.0f - 2.0f * e / (1.0f + e);
  return x < 0.0f ? -outer : outer;
}

__device__ __forceinline__ float soft_cap(float x, float cap) { return tanh_of(x / cap) * cap; }

namespace {

PB_KERNEL(scale_logits, ScaleLogitsParams, kScaleLogitsThreads) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kScaleLogitsThreads + threadIdx.x;
  if (at >= p.n) return;
  const float v = p.logits[at] * p.scale;
  p.logits[at] = p.softcap > 0.0f ? soft_cap(v, p.softcap) : v;
}

}  // namespace
}  // namespace pb::cuda
