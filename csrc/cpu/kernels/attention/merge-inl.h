// The only addition of partial softmax states.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/math-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// total = total + part. The first part is merged into max = -infinity, sum = 0, accumulator = 0 and
// is not changed, because exp(0) is 1.
inline void merge_states(const KvLayout& kv, const QueryBlock& block, int begin, int end,
                         const SoftmaxState& part, const SoftmaxState& total) {
  // Computed for all queries; the factors of queries that see no key are not used.
  alignas(64) float old_factors[kQueriesPerBlock], part_factors[kQueriesPerBlock];
  alignas(64) float maxima[kQueriesPerBlock], sums[kQueriesPerBlock];
  for (int i = 0; i < block.n; i += kWidth) {
    const Vec old_max = load(total.max + i);
    const Vec part_max = load(part.max + i);
    const Vec new_max = max(old_max, part_max);
    const Vec old_factor = exp(sub(old_max, new_max));
    const Vec part_factor = exp(sub(part_max, new_max));
    store(old_factors + i, old_factor);
    store(part_factors + i, part_factor);
    store(maxima + i, new_max);
    store(sums + i, mul_add(load(part.sum + i), part_factor, mul(load(total.sum + i), old_factor)));
  }
  for (int i = 0; i < block.n; ++i) {
    if (block.begin[i] >= end || block.end[i] <= begin) continue;
    total.max[i] = maxima[i];
    total.sum[i] = sums[i];
    const Vec old_factor = set1(old_factors[i]);
    const Vec part_factor = set1(part_factors[i]);
    float* to = total.accumulator + static_cast<size_t>(i) * kv.value_stride;
    const float* from = part.accumulator + static_cast<size_t>(i) * kv.value_stride;
    for (int d = 0; d < kv.value_stride; d += kWidth) {
      store(to + d, mul_add(load(from + d), part_factor, mul(load(to + d), old_factor)));
    }
  }
}

inline void finish_attention(const KvLayout& kv, const SoftmaxState& state, int i,
                             const RowOut& out, int begin) {
  const float* from = state.accumulator + static_cast<size_t>(i) * kv.value_stride;
  const Vec sum = set1(state.sum[i]);
  write_row(out, begin, begin + kv.head_dim,
            [=](int at) { return div(load(from + at - begin), sum); });
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
