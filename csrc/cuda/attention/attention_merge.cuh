// Merges the states of a query's segments, where different blocks have made them.
#pragma once

#include "cuda/attention/softmax_state.cuh"

namespace pb::cuda {
namespace {

PB_LARGE_KERNEL(attention_merge, MergeParams, kTileThreads) {
  const int n = *p.n_split_queries * p.n_kv_heads;
  const int group = p.n_heads / p.n_kv_heads;
  const int stride = p.head_dim + 2;
  for (int i = static_cast<int>(blockIdx.x); i < n; i += static_cast<int>(gridDim.x)) {
    const int kv_head = i % p.n_kv_heads;
    const AttentionQuery query = p.queries[p.split_queries[i / p.n_kv_heads]];
    const int first = begin_of(query.end, p.sliding_window) / kSegment;
    const int last = (end_of(query.end, query.limit, p.after) - 1) / kSegment;
    const float* const states =
        p.states + (kv_head * p.n_states + query.first_state) * int64_t{stride};
    const int64_t head = kv_head * group + query.head;
    const int64_t at = query.row * p.out_stride + head * p.head_dim;
    for (int d = static_cast<int>(threadIdx.x); d < p.head_dim; d += kTileThreads) {
      float greatest = minus_infinity();
      float sum = 0.0f;
      float value = 0.0f;
#pragma unroll 4
      for (int segment = first; segment <= last; ++segment) {
        const float* const state = states + int64_t{segment} * stride;
        const MergeFactors factors =
            merge_sums(greatest, sum, state[p.head_dim], state[p.head_dim + 1]);
        value = merge_value(factors, value, state[d]);
      }
      const float factor = add_sink(p.sinks, head, greatest, sum);
      store_output(p.out, p.out_bf16, at + d, value * factor / sum);
    }
  }
}

}  // namespace
}  // namespace pb::cuda
