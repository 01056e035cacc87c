// The activations of the MLP: out = act(gate) * up, or act(gate), or the clamped SwiGLU of gpt-oss.
#pragma once

#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/math-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

template <Vec (*kAct)(Vec)>
inline void activate(const float* gate, const float* up, const RowOut& out, int begin, int end) {
  write_row(out, begin, end, [=](int i) {
    const Vec v = kAct(load_tail(gate, i, end));
    return up == nullptr ? v : mul(v, load_tail(up, i, end));
  });
}

inline void xielu_row(const float* x, const Xielu& of_layer, const RowOut& out, int begin,
                      int end) {
  const Vec alpha_p = set1(of_layer.alpha_p);
  const Vec alpha_n = set1(of_layer.alpha_n);
  const Vec beta = set1(of_layer.beta);
  const Vec eps = set1(of_layer.eps);
  write_row(out, begin, end,
            [=](int i) { return xielu(load_tail(x, i, end), alpha_p, alpha_n, beta, eps); });
}

// Computes the activation of gpt-oss (OpenAI 2025, gpt-oss-120b & gpt-oss-20b model card,
// arXiv:2508.10925). With this order of operands, each bound keeps a NaN.
inline void clamped_swiglu(const float* gate, const float* up, float alpha, float limit,
                           const RowOut& out, int begin, int end) {
  const Vec most = set1(limit);
  const Vec least = set1(-limit);
  const Vec one = set1(1.0f);
  write_row(out, begin, end, [=](int i) {
    const Vec g = min(most, load_tail(gate, i, end));
    const Vec u = max(least, min(most, load_tail(up, i, end)));
    const Vec glu = div(g, add(one, exp(mul(g, set1(-alpha)))));
    return mul(add(u, one), glu);
  });
}

inline void exp_of(const float* x, float* out, int n) {
  for (int i = 0; i < n; i += kWidth) store_tail(out, i, n, exp(load_tail(x, i, n)));
}

inline void tanh_of(const float* x, float* out, int n) {
  for (int i = 0; i < n; i += kWidth) store_tail(out, i, n, tanh(load_tail(x, i, n)));
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
