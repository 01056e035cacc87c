// exp, and the activations that use it, as one vector polynomial: every lane has the same bits, so
// that a partial (masked) vector equals a full one. The coefficients have the least maximum
// relative error, fitted in double precision.
#pragma once

#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Adding this number, 1.5 * 2^23, rounds a number to a whole one in the lowest bits.
constexpr float kRounding = 12582912.0f;

// Computes e^x = e^r 2^n for x = n ln 2 + r, |r| <= ln 2 / 2. Returns e^r - 1, and n + kRounding in
// `shifted`.
PB_INLINE Vec reduced_expm1(Vec x, Vec& shifted) {
  shifted = mul_add(x, set1(1.44269504f), set1(kRounding));
  const Vec n = sub(shifted, set1(kRounding));
  Vec r = neg_mul_add(n, set1(0.693359375f), x);  // ln 2 in two parts; the first product is exact
  r = neg_mul_add(n, set1(-2.12194440e-4f), r);
  Vec q = set1(1.381459878e-3f);  // e^r = 1 + r + r^2 q(r), error 3.1e-9
  q = mul_add(q, r, set1(8.368716575e-3f));
  q = mul_add(q, r, set1(4.166838899e-2f));
  q = mul_add(q, r, set1(1.666652113e-1f));
  q = mul_add(q, r, set1(4.999999404e-1f));
  return mul_add(mul(r, r), q, r);
}

// Returns e^r of the same r and n.
PB_INLINE Vec reduced_exp(Vec x, Vec& shifted) {
  return add(reduced_expm1(x, shifted), set1(1.0f));
}

// Returns e^x within 1 unit in the last place; 0 below -104, infinity above 89, NaN for NaN.
PB_INLINE Vec exp(Vec x) {
  x = max(set1(-104.0f), min(set1(89.0f), x));  // this order keeps a NaN
  Vec shifted;
  const Vec p = reduced_exp(x, shifted);
  return scale_by_power_of_2(p, sub(shifted, set1(kRounding)));
}

// Returns exp of x <= 0, in fewer steps and with the same bits if no result is subnormal.
PB_INLINE Vec exp_of_negative(Vec x) {
#ifndef __AVX512F__  // AVX-512 scales by a power of 2 in one instruction
  if (all_at_least(x, -87.0f)) {
    Vec shifted;
    const Vec p = reduced_exp(x, shifted);
    return add_to_exponent(p, shifted);
  }
#endif
  return exp(x);
}

// Returns e^x - 1 of x <= 0 within 2 units in the last place, NaN for NaN: (e^r - 1) 2^n + (2^n -
// 1).
PB_INLINE Vec expm1_of_negative(Vec x) {
  x = max(set1(-104.0f), x);  // this order keeps a NaN
  const Vec one = set1(1.0f);
  Vec shifted;
  const Vec p = reduced_expm1(x, shifted);
  const Vec power = scale_by_power_of_2(one, sub(shifted, set1(kRounding)));
  return mul_add(p, power, sub(power, one));
}

// For |x| < 0.625, tanh(x) = x + x^3 P(x^2), error 4.4e-9. Beyond, it is 1 - 2 / (e^2|x| + 1), with
// the sign of x.
PB_INLINE Vec tanh(Vec x) {
  const Vec one = set1(1.0f);
  const Vec size = abs(x);
  const Vec x2 = mul(x, x);
  Vec p = set1(-5.704992e-3f);
  p = mul_add(p, x2, set1(2.063909e-2f));
  p = mul_add(p, x2, set1(-5.373971e-2f));
  p = mul_add(p, x2, set1(1.3331442e-1f));
  p = mul_add(p, x2, set1(-3.3333282e-1f));
  const Vec inner = mul_add(mul(x2, p), x, x);
  const Vec outer = sub(one, div(set1(2.0f), add(exp(add(size, size)), one)));
  const Vec with_sign = select_less(x, zero(), sub(zero(), outer), outer);
  return select_less(size, set1(0.625f), inner, with_sign);
}

// Returns x sigmoid(x).
PB_INLINE Vec silu(Vec x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

// Returns max(x, 0)^2 (So et al., "Primer", 2021, arXiv:2109.08668).
PB_INLINE Vec relu_squared(Vec x) {
  const Vec positive = max(zero(), x);  // this order keeps a NaN
  return mul(positive, positive);
}

PB_INLINE Vec sigmoid(Vec x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

// Returns f(x) of ops/xielu.h. The part of x <= 0 means nothing in lanes above.
PB_INLINE Vec xielu(Vec x, Vec alpha_p, Vec alpha_n, Vec beta, Vec eps) {
  const Vec linear = mul(beta, x);
  const Vec above = mul_add(mul(alpha_p, x), x, linear);
  const Vec curve = sub(expm1_of_negative(min(x, eps)), x);
  return select_less(zero(), x, above, mul_add(alpha_n, curve, linear));
}

// Returns x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and
// Gimpel, "Gaussian Error Linear Units", 2016).
PB_INLINE Vec gelu_tanh(Vec x) {
  const Vec cubic = mul_add(mul(mul(x, x), x), set1(0.044715f), x);
  const Vec e = exp(mul(cubic, set1(-1.5957691216f)));
  return div(x, add(set1(1.0f), e));
}

// Returns x Phi(x), Phi(x) = (1 + erf(z)) / 2, z = x / sqrt(2). For |z| < 1, erf(z) = z P(z^2),
// error 1.2e-9. Beyond, erfc(|z|) = exp(-T(|z|)), error 1.0e-9, and 0 from |z| = 4 on, where it is
// below 1.6e-8.
PB_INLINE Vec gelu(Vec x) {
  const Vec one = set1(1.0f);
  const Vec half = set1(0.5f);
  const Vec z = mul(x, set1(0.70710678f));
  const Vec size = abs(z);

  const Vec z2 = mul(z, z);
  Vec p = set1(7.853527495e-5f);
  p = mul_add(p, z2, set1(-8.010010057e-4f));
  p = mul_add(p, z2, set1(5.188317969e-3f));
  p = mul_add(p, z2, set1(-2.685380727e-2f));
  p = mul_add(p, z2, set1(1.128358468e-1f));
  p = mul_add(p, z2, set1(-3.761262596e-1f));
  p = mul_add(p, z2, set1(1.128379107f));
  const Vec inner = mul_add(mul(z, p), half, half);

  const Vec t = sub(min(size, set1(4.0f)), set1(2.0f));
  Vec q = set1(-1.856947929e-4f);
  q = mul_add(q, t, set1(7.125041448e-4f));
  q = mul_add(q, t, set1(-3.543730592e-3f));
  q = mul_add(q, t, set1(1.648736931e-2f));
  q = mul_add(q, t, set1(9.237531424e-1f));
  q = mul_add(q, t, set1(4.418159485f));
  q = mul_add(q, t, set1(5.364941120f));
  const Vec tail = mul(half, exp(sub(zero(), q)));
  const Vec lower = select_less(size, set1(4.0f), tail, zero());
  const Vec outer = select_less(z, zero(), lower, sub(one, lower));

  return mul(x, select_less(size, one, inner, outer));
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
