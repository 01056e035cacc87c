// Attention over f32 keys and values. Every sum is one chain of fused multiply-adds in ascending
// order over the positions that a query sees. These kernels are the reference for the order of work
// of the others: they use the same work list, segments and merges.
#pragma once

#include "cuda/attention/softmax_state.cuh"
#include "cuda/rows/softcap.cuh"

namespace pb::cuda {
namespace {

constexpr int kDimsOfThread = 2;  // columns of values that a thread adds
static_assert(kDimsOfThread * f32_threads(false) == 256);
static_assert(kDimsOfThread * f32_threads(true) == kLargestPaddedDim);

// Addresses the rows of one kv head's keys and values.
struct KvRows {
  const KvLayer& kv;
  const int32_t* block_table;
  int kv_head;

  __device__ __forceinline__ const float* row(int position, bool value) const {
    const int64_t block = block_table[position >> kv.block_shift];
    const int slot = position & ((1 << kv.block_shift) - 1);
    const int64_t heads = (2 * block + (value ? 1 : 0)) * kv.n_kv_heads + kv_head;
    return static_cast<const float*>(kv.numbers) + ((heads << kv.block_shift) + slot) * kv.head_dim;
  }
};

// Computes scores[i][position - first of the segment] for a chunk of positions, of which the
// positions [begin, end) are seen.
template <bool kWide>
__device__ __forceinline__ void score_chunk_f32(const KvRows& rows, int chunk, int begin, int end,
                                                float softcap, const SharedF32& shared) {
  constexpr int kThreads = f32_threads(kWide);
  constexpr int kChunk = f32_chunk(kWide);
  const int thread = static_cast<int>(threadIdx.x);
  const int head_dim = rows.kv.head_dim;
  for (int at = thread / 32; at < kChunk; at += kThreads / 32) {
    const int position = chunk * kChunk + at;
    if (position < begin || position >= end) continue;
    const float* const key = rows.row(position, false);
    for (int d = thread % 32; d < head_dim; d += 32) shared.keys[at * (head_dim + 1) + d] = key[d];
  }
  __syncthreads();
  constexpr int kQueries = kSmallTile * kChunk / kThreads;  // per thread
  const int at = thread % kChunk;
  const int position = chunk * kChunk + at;
  const int first_query = thread / kChunk * kQueries;
  if (position >= begin && position < end) {
    float sums[kQueries] = {};
    const float* const key = shared.keys + at * (head_dim + 1);
    for (int d = 0; d < head_dim; ++d) {
#pragma unroll
      for (int i = 0; i < kQueries; ++i) {
        sums[i] = __fmaf_rn(shared.q[(first_query + i) * head_dim + d], key[d], sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (softcap > 0.0f) sums[i] = soft_cap(sums[i], softcap);
      shared.scores[(first_query + i) * kSegment + position % kSegment] = sums[i];
    }
  }
  __syncthreads();
}

// Turns scores into weights; warps take queries in turn. A lane handles positions that are 32
// apart, starting at the segment's first one, whatever range the query sees.
template <bool kWide>
__device__ __forceinline__ void softmax_f32(int segment, const SharedF32& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kWarps = f32_threads(kWide) / 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kSmallTile; i += kWarps) {
    if (!sees_segment(shared.begin[i], shared.end[i], segment)) continue;
    const int begin = shared.begin[i] - segment * kSegment;
    const int end = shared.end[i] - segment * kSegment;
    float* const scores = shared.scores + i * kSegment;
    float top = minus_infinity();
    for (int at = lane; at < kSegment; at += 32) {
      if (at >= begin && at < end) top = scores[at] > top ? scores[at] : top;
    }
    top = warp_max(top);
    const float base = softmax_base(top);
    float sum = 0.0f;
    for (int at = lane; at < kSegment; at += 32) {
      if (at < begin || at >= end) continue;
      const float weight = exp_of(scores[at] - base);
      scores[at] = weight;
      sum += weight;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      shared.greatest[i] = top;
      shared.sum[i] = sum;
      shared.factors[i] = merge_sums(shared.total_greatest[i], shared.total_sum[i], top, sum);
    }
  }
  __syncthreads();
}

// A thread's columns of the values of all queries: the current segment's sums and the total so far.
struct ValuesF32 {
  float part[kSmallTile][kDimsOfThread];
  float total[kSmallTile][kDimsOfThread];
};

template <bool kWide>
__device__ __forceinline__ void add_values_f32(const KvRows& rows, int begin, int end,
                                               const SharedF32& shared, ValuesF32& values) {
#pragma unroll
  for (int c = 0; c < kDimsOfThread; ++c) {
    const int column = static_cast<int>(threadIdx.x) + c * f32_threads(kWide);
#pragma unroll
    for (int i = 0; i < kSmallTile; ++i) values.part[i][c] = 0.0f;
    if (column >= rows.kv.head_dim) continue;
#pragma unroll 1
    for (int position = begin; position < end; ++position) {
      const float value = rows.row(position, true)[column];
#pragma unroll
      for (int i = 0; i < kSmallTile; ++i) {
        if (position < shared.begin[i] || position >= shared.end[i]) continue;
        const float weight = shared.scores[i * kSegment + position % kSegment];
        values.part[i][c] = __fmaf_rn(weight, value, values.part[i][c]);
      }
    }
  }
}

template <bool kWide>
__device__ __forceinline__ void end_segment_f32(const AttentionParams& p, const AttentionItem& item,
                                                int kv_head, int segment, const SharedF32& shared,
                                                ValuesF32& values) {
  const int thread = static_cast<int>(threadIdx.x);
  const int head_dim = p.kv.head_dim;
#pragma unroll
  for (int i = 0; i < kSmallTile; ++i) {
    if (!sees_segment(shared.begin[i], shared.end[i], segment)) continue;
    if (item.split == 0) {
#pragma unroll
      for (int c = 0; c < kDimsOfThread; ++c) {
        values.total[i][c] = merge_value(shared.factors[i], values.total[i][c], values.part[i][c]);
      }
      continue;
    }
    const int64_t number =
        kv_head * p.n_states + p.queries[item.first_query + i].first_state + segment;
    float* const state = p.states + number * (head_dim + 2);
#pragma unroll
    for (int c = 0; c < kDimsOfThread; ++c) {
      const int column = thread + c * f32_threads(kWide);
      if (column < head_dim) state[column] = values.part[i][c];
    }
    if (thread == 0) {
      state[head_dim] = shared.greatest[i];
      state[head_dim + 1] = shared.sum[i];
    }
  }
}

template <bool kWide>
__device__ __forceinline__ void attend_item_f32(const AttentionParams& p, const AttentionItem& item,
                                                int kv_head, const SharedF32& shared) {
  constexpr int kThreads = f32_threads(kWide);
  constexpr int kChunk = f32_chunk(kWide);
  const int thread = static_cast<int>(threadIdx.x);
  const int head_dim = p.kv.head_dim;
  const int group = p.n_heads / p.kv.n_kv_heads;
  const int64_t row_size = static_cast<int64_t>(p.n_heads + 2 * p.kv.n_kv_heads) * head_dim;
  const int first = begin_of(item.min_end, p.sliding_window);
  const int begin = first > item.first_segment * kSegment ? first : item.first_segment * kSegment;
  const int seen_end = end_of(item.max_end, item.limit, p.after);
  const int end = seen_end < item.end_segment * kSegment ? seen_end : item.end_segment * kSegment;
  if (begin >= end) return;

  for (int i = thread; i < kSmallTile * head_dim; i += kThreads) {
    const int at = i / head_dim;
    float x = 0.0f;
    if (at < item.n_queries) {
      const AttentionQuery query = p.queries[item.first_query + at];
      const int64_t head = kv_head * group + query.head;
      x = p.qkv[query.row * row_size + head * head_dim + i % head_dim] * p.scale;
    }
    shared.q[i] = x;
  }
  if (thread < kSmallTile) {
    AttentionQuery query{};
    if (thread < item.n_queries) query = p.queries[item.first_query + thread];
    shared.begin[thread] = begin_of(query.end, p.sliding_window);
    shared.end[thread] = end_of(query.end, query.limit, p.after);
    shared.total_greatest[thread] = minus_infinity();
    shared.total_sum[thread] = 0.0f;
  }
  ValuesF32 values;
#pragma unroll
  for (int i = 0; i < kSmallTile; ++i) {
#pragma unroll
    for (int c = 0; c < kDimsOfThread; ++c) values.total[i][c] = 0.0f;
  }
  __syncthreads();
  const KvRows rows{p.kv, p.block_tables + item.block_table, kv_head};
  for (int segment = begin / kSegment; segment * kSegment < end; ++segment) {
    const int from = segment * kSegment > begin ? segment * kSegment : begin;
    const int until = (segment + 1) * kSegment < end ? (segment + 1) * kSegment : end;
    for (int chunk = from / kChunk; chunk * kChunk < until; ++chunk) {
      score_chunk_f32<kWide>(rows, chunk, from, until, p.softcap, shared);
    }
    softmax_f32<kWide>(segment, shared);
    add_values_f32<kWide>(rows, from, until, shared, values);
    end_segment_f32<kWide>(p, item, kv_head, segment, shared, values);
    __syncthreads();  // The next segment overwrites the weights and sums.
  }
  if (item.split != 0) return;
#pragma unroll
  for (int i = 0; i < kSmallTile; ++i) {
    if (i >= item.n_queries) continue;
    const AttentionQuery query = p.queries[item.first_query + i];
    const int64_t head = kv_head * group + query.head;
    const int64_t at = query.row * p.out_stride + head * head_dim;
    float sum = shared.total_sum[i];
    const float factor = add_sink(p.sinks, head, shared.total_greatest[i], sum);
#pragma unroll
    for (int c = 0; c < kDimsOfThread; ++c) {
      const int column = thread + c * f32_threads(kWide);
      if (column >= head_dim) continue;
      store_output(p.out, p.out_bf16, at + column, values.total[i][c] * factor / sum);
    }
  }
  __syncthreads();  // The next item overwrites the queries.
}

template <bool kWide>
__device__ __forceinline__ void attend_items_f32(const AttentionParams& p) {
  SharedArrays arrays;
  const SharedF32 shared = take_f32(arrays, p.kv.head_dim, kWide);
  const int n = *p.n_items * p.kv.n_kv_heads;
  for (int i = static_cast<int>(blockIdx.x); i < n; i += static_cast<int>(gridDim.x)) {
    attend_item_f32<kWide>(p, p.items[i / p.kv.n_kv_heads], i % p.kv.n_kv_heads, shared);
  }
}

PB_LARGE_KERNEL(attention_f32_small, AttentionParams, f32_threads(false)) {
  attend_items_f32<false>(p);
}
PB_LARGE_KERNEL(attention_f32_512_small, AttentionParams, f32_threads(true)) {
  attend_items_f32<true>(p);
}

}  // namespace
}  // namespace pb::cuda
