// The sigmoid, SiLU, squared ReLU, both GELUs and xIELU of one number, computed by fused
// multiply-adds, divisions, exp_of and expm1_of only, so that every device has the same bits.
//
// The relative error for -13 < x < 13 is 3.3e-7 for silu, 4.5e-7 for gelu, and 5e-7 for gelu_tanh
// above -2. Below -2, the rounding of its exponent increases the error of gelu_tanh to 2.3e-6 at
// -5; its absolute error stays under 1.5e-7 |x|.
#pragma once

#include "cuda/device_code/device_code.h"
#include "ops/xielu.h"

namespace pb::cuda {

// Returns 1 / (1 + e^-v), by e^v of v <= 0 only: nothing overflows, and small results keep their
// precision. Returns 0 below -87.
__device__ __forceinline__ float sigmoid(float v) {
  const float e = exp_of(v < 0.0f ? v : -v);
  return (v < 0.0f ? e : 1.0f) / (1.0f + e);
}

__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// Returns f(x) of ops/xielu.h, with an error within 5e-7 of the sum of its terms' magnitudes.
__device__ __forceinline__ float xielu(float x, const Xielu& of_layer) {
  const float linear = of_layer.beta * x;
  const float below = x < of_layer.eps ? x : of_layer.eps;
  const float curve = expm1_of(below) - x;
  return x > 0.0f ? __fmaf_rn(of_layer.alpha_p * x, x, linear)
                  : __fmaf_rn(of_layer.alpha_n, curve, linear);
}

// Returns max(x, 0)^2 (So et al., "Primer", 2021, arXiv:2109.08668), and NaN for NaN.
__device__ __forceinline__ float relu_squared(float x) {
  const float positive = x < 0.0f ? 0.0f : x;
  return positive * positive;
}

// Returns x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and
// Gimpel, "Gaussian Error Linear Units", 2016, arXiv:1606.08415).
__device__ __forceinline__ float gelu_tanh(float x) {
  const float cubic = __fmaf_rn(x * x * x, 0.044715f, x);
  return x * sigmoid(cubic * 1.5957691216f);
}

// Returns x Phi(x), where Phi is the normal distribution's. Phi(-s) = e^(-s^2 / 2) Q(s) for s >= 0,
// and Phi(s) = 1 - Phi(-s). Q(s) = erfcx(s / sqrt(2)) / 2 is smooth in t = 1 / (1 + 3/8 s), as
// Shepherd and Laframboise (Math. Comp. 36, 1981) use it. Q = t P(t), where P has degree 9 and is
// fitted to the least maximum relative error (2.4e-8 with these coefficients) over 0 <= s <= 13.3
// in double precision.
__device__ __forceinline__ float gelu(float x) {
  const float s = x < 0.0f ? -x : x;
  const float square = s * s;
  const float cut = __fmaf_rn(s, s, -square);  // the rounding error of the square
  const float t = 1.0f / __fmaf_rn(0.375f, s, 1.0f);
  float p = 2.176905796e-02f;
  p = __fmaf_rn(p, t, -1.385705024e-01f);
  p = __fmaf_rn(p, t, 3.551814258e-01f);
  p = __fmaf_rn(p, t, -4.372192323e-01f);
  p = __fmaf_rn(p, t, 2.260151953e-01f);
  p = __fmaf_rn(p, t, -6.145504117e-02f);
  p = __fmaf_rn(p, t, 1.098235101e-01f);
  p = __fmaf_rn(p, t, 1.249426901e-01f);
  p = __fmaf_rn(p, t, 1.499215811e-01f);
  p = __fmaf_rn(p, t, 1.495913118e-01f);
  const float tail = exp_of(-0.5f * square) * __fmaf_rn(-0.5f * cut, p * t, p * t);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

}  // namespace pb::cuda
