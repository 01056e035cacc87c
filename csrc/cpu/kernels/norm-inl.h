// RMSNorm and LayerNorm of one row.
//
// Sums run in four vectors of lanes: element i is added to lane i % kWidth of vector (i / kWidth) %
// 4, and the vectors are added in a fixed tree. So the order depends on `hidden` alone.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kSumVectors = 4;

// Returns the sum over i < n of f(i-th vector of x). The vector is zero beyond the end, where f has
// to return zero.
template <typename Term>
PB_INLINE float sum_of(const float* x, int n, Term term) {
  Vec sums[kSumVectors] = {zero(), zero(), zero(), zero()};
  for (int i = 0; i < n; i += kSumVectors * kWidth) {
    for (int s = 0; s < kSumVectors; ++s) {
      const int at = i + s * kWidth;
      if (at < n) sums[s] = term(load_tail(x, at, n), at, sums[s]);
    }
  }
  return reduce_add(add(add(sums[0], sums[2]), add(sums[1], sums[3])));
}

PB_INLINE float mean_of_squares(const float* x, int n) {
  const float sum = sum_of(x, n, [](Vec v, int, Vec s) { return mul_add(v, v, s); });
  return sum / static_cast<float>(n);
}

// Returns 1 / sqrt(x), with both steps rounded.
PB_INLINE Vec reciprocal_sqrt(float x) { return div(set1(1.0f), sqrt(set1(x))); }

// out = x / sqrt(mean(x^2) + eps) * weight
inline void rms_norm(const NormArgs& norm, const float* x, const RowOut& out) {
  const int n = norm.hidden;
  const Vec factor = reciprocal_sqrt(mean_of_squares(x, n) + norm.eps);
  write_row(out, 0, n, [=](int i) {
    return mul(mul(load_tail(x, i, n), factor), load_tail(norm.weight, i, n));
  });
}

// x = (x + y / sqrt(mean(y^2) + eps) * weight) * sum_scale
template <bool kScales>
PB_INLINE void add_norm(const NormArgs& norm, const float* y, float* x) {
  const int n = norm.hidden;
  const Vec factor = reciprocal_sqrt(mean_of_squares(y, n) + norm.eps);
  [[maybe_unused]] const Vec scale = set1(norm.sum_scale);
  for (int i = 0; i < n; i += kWidth) {
    const Vec v = mul(load_tail(y, i, n), factor);
    Vec sum = mul_add(v, load_tail(norm.weight, i, n), load_tail(x, i, n));
    if constexpr (kScales) sum = mul(sum, scale);
    store_tail(x, i, n, sum);
  }
}

inline void rms_norm_add(const NormArgs& norm, const float* y, float* x) {
  norm.sum_scale == 1.0f ? add_norm<false>(norm, y, x) : add_norm<true>(norm, y, x);
}

// out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias
inline void layer_norm(const NormArgs& norm, const float* x, const RowOut& out) {
  const int n = norm.hidden;
  const float sum = sum_of(x, n, [](Vec v, int, Vec s) { return add(v, s); });
  const Vec mean = set1(sum / static_cast<float>(n));
  const float squares = sum_of(x, n, [n, mean](Vec v, int at, Vec s) {
    const Vec centred = keep_lanes(sub(v, mean), 0, n - at < kWidth ? n - at : kWidth, zero());
    return mul_add(centred, centred, s);
  });
  const Vec factor = reciprocal_sqrt(squares / static_cast<float>(n) + norm.eps);
  write_row(out, 0, n, [=](int i) {
    const Vec v = mul(sub(load_tail(x, i, n), mean), factor);
    return mul_add(v, load_tail(norm.weight, i, n), load_tail(norm.bias, i, n));
  });
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
