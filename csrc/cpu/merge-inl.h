// The one place that adds up partial softmax states.
#pragma once

#include "cpu/attention-inl.h"
#include "cpu/kernels.h"
#include "cpu/math-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// total = total + part. The first part meets max = -infinity, sum = 0, accumulator = 0.
inline void merge_segment(const KvLayout& kv, const QueryBlock& block, int segment,
                          const SoftmaxState& part, const SoftmaxState& total) {
  for (int i = 0; i < block.n; ++i) {
    if (first_key(block, i, segment) >= end_key(block, i, segment)) continue;
    const Vec old_max = set1(total.max[i]);
    const Vec part_max = set1(part.max[i]);
    const Vec new_max = max(old_max, part_max);
    const Vec old_factor = exp(sub(old_max, new_max));
    const Vec part_factor = exp(sub(part_max, new_max));
    const Vec sum = mul_add(set1(part.sum[i]), part_factor, mul(set1(total.sum[i]), old_factor));
    store_n(total.max + i, new_max, 1);
    store_n(total.sum + i, sum, 1);
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
