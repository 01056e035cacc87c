// The gated short convolution of neighbouring rows (ops/recurrent.h).
//
// Every channel is computed independently, and every row from its own inputs and those of earlier
// rows, in one order: neither the channels nor the rows of a call affect the bits.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Returns u of channels [channel, channel + kWidth) at a place before (below 0) or among the call's
// rows.
PB_INLINE Vec short_conv_input(const ShortConvArgs& a, int place, int channel) {
  if (place >= 0) {
    const float* const row = a.x + static_cast<int64_t>(place) * 3 * a.width;
    return mul(load_tail(row, channel, a.end), load_tail(row + 2 * a.width, channel, a.end));
  }
  if (a.from == nullptr) return zero();
  return load_tail(a.from + static_cast<int64_t>(a.conv_size - 1 + place) * a.width, channel,
                   a.end);
}

inline void short_conv(const ShortConvArgs& a) {
  const int n_kept = a.conv_size - 1;
  for (int row = 0; row < a.n_rows; ++row) {
    const float* const c = a.x + (static_cast<int64_t>(row) * 3 + 1) * a.width;
    float* const y = a.y + static_cast<int64_t>(row) * a.width;
    for (int channel = a.begin; channel < a.end; channel += kWidth) {
      Vec sum = zero();
      for (int tap = 0; tap < a.conv_size; ++tap) {
        const float* const weights = a.convolution + static_cast<int64_t>(tap) * a.width;
        sum = mul_add(short_conv_input(a, row + tap - n_kept, channel),
                      load_tail(weights, channel, a.end), sum);
      }
      store_tail(y, channel, a.end, mul(load_tail(c, channel, a.end), sum));
    }
  }
  // In this order, a state that is updated in place is read before it is overwritten.
  for (int i = 0; i < n_kept; ++i) {
    float* const to = a.to + static_cast<int64_t>(i) * a.width;
    for (int channel = a.begin; channel < a.end; channel += kWidth) {
      store_tail(to, channel, a.end, short_conv_input(a, a.n_rows - n_kept + i, channel));
    }
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
