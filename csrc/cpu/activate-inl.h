// The MLP's activation: out = act(gate) * up, or act(gate).
#pragma once

#include "cpu/math-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

template <Vec (*kAct)(Vec), bool kBf16>
PB_INLINE void activate_row(const float* gate, const float* up, void* out, int begin, int end) {
  for (int i = begin; i < end; i += kWidth) {
    Vec v = kAct(load_tail(gate, i, end));
    if (up != nullptr) v = mul(v, load_tail(up, i, end));
    store_activation<kBf16>(out, i, end, v);
  }
}

template <Vec (*kAct)(Vec)>
inline void activate(const float* gate, const float* up, void* out, int begin, int end, bool bf16) {
  bf16 ? activate_row<kAct, true>(gate, up, out, begin, end)
       : activate_row<kAct, false>(gate, up, out, begin, end);
}

inline void exp_of(const float* x, float* out, int n) {
  for (int i = 0; i < n; i += kWidth) store_tail(out, i, n, exp(load_tail(x, i, n)));
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
