// The gated delta rule of a key head and its value heads, row by row (ops/recurrent.h).
//
// Every column of a state is computed independently, over its rows in order: neither the tile of
// columns nor the call that contains a row affects the bits.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/norm-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/math-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Vectors per tile of columns, which then fits the first-level cache.
constexpr int kDeltaRuleVectors = 4;
constexpr float kUnitEps = 1e-6f;

// A row's rounded inputs, (key_dim) each.
struct DeltaRuleRow {
  const float* q;
  const float* k;
  float q_times_k;
};

// Returns the inputs of n channels at a place before (below 0) or among the call's rows; null means
// zeros.
PB_INLINE const float* gated_delta_net_inputs(const GatedDeltaNetArgs& a, int place, int channel) {
  if (place >= 0) return a.x + place * a.x_stride + channel;
  if (a.history_from == nullptr) return nullptr;
  return a.history_from + static_cast<int64_t>(a.conv_size - 1 + place) * a.n_channels + channel;
}

// out (n) = silu(convolution) of row `row` for n channels.
PB_INLINE void convolve(const GatedDeltaNetArgs& a, int row, int channel, int n, float* out) {
  for (int i = 0; i < n; i += kWidth) {
    Vec sum = zero();
    for (int tap = 0; tap < a.conv_size; ++tap) {
      const float* const inputs = gated_delta_net_inputs(a, row + tap - a.conv_size + 1, channel);
      if (inputs == nullptr) continue;
      const float* const weights = a.convolution + static_cast<int64_t>(tap) * a.n_channels;
      sum = mul_add(load_tail(inputs, i, n), load_tail(weights + channel, i, n), sum);
    }
    store_tail(out, i, n, silu(sum));
  }
}

// x (n) = x / |x| * scale
PB_INLINE void make_unit(float* x, int n, float scale) {
  const float squares = sum_of(x, n, [](Vec v, int, Vec s) { return mul_add(v, v, s); });
  const Vec factor = mul(reciprocal_sqrt(squares + kUnitEps), set1(scale));
  for (int i = 0; i < n; i += kWidth) store_tail(x, i, n, mul(load_tail(x, i, n), factor));
}

// Computes y and the state after one row, for n columns, at most kVectors * kWidth. A null `from`
// means zeros.
template <int kVectors>
PB_INLINE void delta_rule_columns(const GatedDeltaNetArgs& a, const DeltaRuleRow& row,
                                  const float* gates, const float* v, const float* from, float* to,
                                  float* y, int n) {
  Vec of_key[kVectors], of_query[kVectors];
  for (int j = 0; j < kVectors; ++j) of_key[j] = of_query[j] = zero();
  for (int i = 0; from != nullptr && i < a.key_dim; ++i) {
    const Vec key = set1(row.k[i]);
    const Vec query = set1(row.q[i]);
    for (int j = 0; j < kVectors; ++j) {
      const Vec s = load_tail(from + i * a.value_dim, j * kWidth, n);
      of_key[j] = mul_add(key, s, of_key[j]);
      of_query[j] = mul_add(query, s, of_query[j]);
    }
  }
  const Vec kept = set1(gates[0]);
  const Vec learnt = set1(gates[1]);
  Vec delta[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    delta[j] = mul(neg_mul_add(kept, of_key[j], load_tail(v, j * kWidth, n)), learnt);
    const Vec out = mul_add(set1(row.q_times_k), delta[j], mul(kept, of_query[j]));
    store_tail(y, j * kWidth, n, out);
  }
  for (int i = 0; i < a.key_dim; ++i) {
    const Vec key = set1(row.k[i]);
    for (int j = 0; j < kVectors; ++j) {
      const int at = j * kWidth;
      const Vec s = from == nullptr ? zero() : load_tail(from + i * a.value_dim, at, n);
      store_tail(to + i * a.value_dim, at, n, mul_add(key, delta[j], mul(kept, s)));
    }
  }
}

inline void keep_history(const GatedDeltaNetArgs& a, int channel, int n) {
  // In this order, a history that is updated in place is read before it is overwritten.
  for (int h = 0; h + 1 < a.conv_size; ++h) {
    const float* const inputs = gated_delta_net_inputs(a, a.n_rows - a.conv_size + 1 + h, channel);
    float* const to = a.history_to + static_cast<int64_t>(h) * a.n_channels + channel;
    for (int i = 0; i < n; i += kWidth) {
      store_tail(to, i, n, inputs == nullptr ? zero() : load_tail(inputs, i, n));
    }
  }
}

inline void gated_delta_net(const GatedDeltaNetArgs& a, float* scratch) {
  const int n_values = a.n_heads * a.value_dim;
  const int value_step = a.head_step * a.value_dim;  // distance between two heads
  float* const q = scratch;
  float* const k = q + kGatedDeltaNetRows * a.key_dim;
  float* const v = k + kGatedDeltaNetRows * a.key_dim;
  const float query_scale = 1.0f / __builtin_sqrtf(static_cast<float>(a.key_dim));
  DeltaRuleRow rows[kGatedDeltaNetRows];
  for (int t = 0; t < a.n_rows; ++t) {
    float* const qt = q + t * a.key_dim;
    float* const kt = k + t * a.key_dim;
    convolve(a, t, a.q, a.key_dim, qt);
    convolve(a, t, a.k, a.key_dim, kt);
    for (int head = 0; head < a.n_heads; ++head) {
      convolve(a, t, a.v + head * value_step, a.value_dim, v + t * n_values + head * a.value_dim);
    }
    make_unit(qt, a.key_dim, query_scale);
    make_unit(kt, a.key_dim, 1.0f);
    const float q_times_k = sum_of(qt, a.key_dim, [kt, &a](Vec x, int at, Vec sum) {
      return mul_add(x, load_tail(kt, at, a.key_dim), sum);
    });
    rows[t] = {qt, kt, q_times_k};
  }
  keep_history(a, a.q, a.key_dim);
  keep_history(a, a.k, a.key_dim);
  for (int head = 0; head < a.n_heads; ++head) {
    keep_history(a, a.v + head * value_step, a.value_dim);
  }

  constexpr int kTile = kDeltaRuleVectors * kWidth;
  for (int head = 0; head < a.n_heads; ++head) {
    const int64_t state = static_cast<int64_t>(head) * value_step * a.key_dim;
    const int first = head * a.value_dim;
    for (int c = 0; c < a.value_dim;) {
      const bool is_whole = a.value_dim - c >= kTile;
      float* const to = a.state_to + state + c;
      for (int t = 0; t < a.n_rows; ++t) {
        const float* const from = t > 0                     ? to
                                  : a.state_from == nullptr ? nullptr
                                                            : a.state_from + state + c;
        const float* const gates = a.gates + (t * a.n_heads + head) * 2;
        const float* const values = v + t * n_values + first + c;
        float* const y = a.y + t * a.y_stride + head * value_step + c;
        if (is_whole) {
          delta_rule_columns<kDeltaRuleVectors>(a, rows[t], gates, values, from, to, y, kTile);
        } else {
          const int n = a.value_dim - c < kWidth ? a.value_dim - c : kWidth;
          delta_rule_columns<1>(a, rows[t], gates, values, from, to, y, n);
        }
      }
      c += is_whole ? kTile : kWidth;
    }
  }

  for (int t = 0; t < a.n_rows; ++t) {
    for (int head = 0; head < a.n_heads; ++head) {
      const int n = a.value_dim;
      float* const y = a.y + t * a.y_stride + head * value_step;
      const float* const z = a.x + t * a.x_stride + a.z + head * value_step;
      const Vec factor = reciprocal_sqrt(mean_of_squares(y, n) + a.norm_eps);
      for (int i = 0; i < n; i += kWidth) {
        const Vec normed = mul(mul(load_tail(y, i, n), factor), load_tail(a.norm_weight, i, n));
        store_tail(y, i, n, mul(normed, silu(load_tail(z, i, n))));
      }
    }
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
