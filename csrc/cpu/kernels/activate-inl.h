// The MLP's activation: out = act(gate) * up, or act(gate).
#pragma once

#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

template <Vec (*kAct)(Vec)>
inline void activate(const float* gate, const float* up, const RowOut& out, int begin, int end) {
  write_row(out, begin, end, [=](int i) {
    const Vec v = kAct(load_tail(gate, i, end));
    return up == nullptr ? v : mul(v, load_tail(up, i, end));
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
