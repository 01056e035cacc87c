// Reading and writing rows of numbers, tails included: one place decides how a vector that is not
// full is loaded and stored, and how Activations are laid out.
#pragma once

#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Bytes of a bf16 number in Activations: products that expand their operands take it expanded.
constexpr int kActivationBf16Bytes = kBf16Products ? 2 : 4;

// Elements [i, i + kWidth) of a row of n; those past the end are zero.
PB_INLINE Vec load_tail(const float* row, int i, int n) {
  return n - i >= kWidth ? load(row + i) : load_n(row + i, n - i);
}

PB_INLINE void store_tail(float* row, int i, int n, Vec v) {
  if (n - i >= kWidth) {
    store(row + i, v);
  } else {
    store_n(row + i, v, n - i);
  }
}

template <bool kBf16>
PB_INLINE void store_activation(void* row, int i, int n, Vec v) {
  if constexpr (!kBf16) {
    store_tail(static_cast<float*>(row), i, n, v);
  } else if constexpr (kBf16Products) {
    store_bf16_n(static_cast<uint16_t*>(row) + i, round_to_bf16(v),
                 n - i < kWidth ? n - i : kWidth);
  } else {
    store_tail(static_cast<float*>(row), i, n, round_to_bf16(v));
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
