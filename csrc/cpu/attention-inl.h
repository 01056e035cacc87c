// Softmax attention of a block of queries over one segment of kSegment positions, and the merge of
// segments (the running softmax of Milakov and Gimelshein, 2018, at fixed borders).
//
// A query's bits hang on its own keys alone. Scores: one chain over head_dim a key. Exponentials:
// lane by lane; their sum runs in lanes by position in the segment. Values: one chain over the
// keys, in ascending order, an output. A query adds exactly the keys it may see: where the queries
// of a block see different ones, the common range is shared and each takes its own ends alone. What
// lies in slots past a query's end is never multiplied, only computed beside it in lanes that are
// dropped.
#pragma once

#include "cpu/kernels.h"
#include "cpu/math-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kQueryRows = 6;  // queries of a register block
constexpr int kKeyVectors = 2;
constexpr int kValueVectors = kRegisters == 32 ? 4 : 2;

struct F32Kv {
  using Number = float;
  static constexpr int kPair = 1;
  static PB_INLINE Vec load_values(const float* p) { return load(p); }

  // sum[i][v] += q[i] k over head_dim, for kVectors vectors of keys.
  template <int kQueries, int kVectors>
  static PB_INLINE void score(const float* keys, int stride, int head_dim, const float* const* q,
                              Vec (&sum)[kQueries][kVectors]) {
    for (int d = 0; d < head_dim; ++d) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Vec k = load(keys + static_cast<size_t>(d) * stride + v * kWidth);
#pragma GCC unroll 6
        for (int i = 0; i < kQueries; ++i) sum[i][v] = mul_add(k, set1(q[i][d]), sum[i][v]);
      }
    }
  }
};

struct Bf16Kv {
  using Number = uint16_t;
  static constexpr int kPair = 2;
  static PB_INLINE Vec load_values(const uint16_t* p) { return load_bf16(p); }

  template <int kQueries, int kVectors>
  static PB_INLINE void score(const uint16_t* keys, int stride, int head_dim, const float* const* q,
                              Vec (&sum)[kQueries][kVectors]) {
    for (int d = 0; d < head_dim; d += 2) {
      const bool whole = d + 1 < head_dim;  // an odd head_dim ends in half a pair
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Pairs pairs =
            load_pairs(keys + (static_cast<size_t>(d / 2) * stride + v * kWidth) * 2);
        const Vec first = even(pairs);
        const Vec second = odd(pairs);
#pragma GCC unroll 6
        for (int i = 0; i < kQueries; ++i) sum[i][v] = mul_add(first, set1(q[i][d]), sum[i][v]);
        if (!whole) continue;
#pragma GCC unroll 6
        for (int i = 0; i < kQueries; ++i) {
          sum[i][v] = mul_add(second, set1(q[i][d + 1]), sum[i][v]);
        }
      }
    }
  }
};

template <typename Kv>
PB_INLINE const typename Kv::Number* keys_of(const AttentionArgs& args, int page) {
  return reinterpret_cast<const typename Kv::Number*>(
      args.head + static_cast<size_t>(args.pages[page]) * args.layout.page_bytes);
}

template <typename Kv>
PB_INLINE const typename Kv::Number* values_of(const AttentionArgs& args, int page) {
  return reinterpret_cast<const typename Kv::Number*>(
      args.head + static_cast<size_t>(args.pages[page]) * args.layout.page_bytes +
      args.layout.value_offset);
}

// scores[i][slot] of kQueries queries over the slots of one page.
template <typename Kv, int kQueries>
inline void score_page(const KvLayout& kv, const typename Kv::Number* keys, const float* const* q,
                       float* scores) {
  for (int slot = 0; slot < kv.block_size; slot += kKeyVectors * kWidth) {
    const auto* column = keys + static_cast<size_t>(slot) * Kv::kPair;
    if (kv.block_size - slot >= kKeyVectors * kWidth) {
      Vec sum[kQueries][kKeyVectors] = {};
      Kv::score(column, kv.key_stride, kv.head_dim, q, sum);
      for (int i = 0; i < kQueries; ++i) {
        for (int v = 0; v < kKeyVectors; ++v) {
          store(scores + i * kSegment + slot + v * kWidth, sum[i][v]);
        }
      }
      continue;
    }
    for (int at = slot; at < kv.block_size; at += kWidth) {
      Vec sum[kQueries][1] = {};
      Kv::score(keys + static_cast<size_t>(at) * Kv::kPair, kv.key_stride, kv.head_dim, q, sum);
      for (int i = 0; i < kQueries; ++i) {
        store_tail(scores + i * kSegment, at, kv.block_size, sum[i][0]);
      }
    }
  }
}

// accumulator[i] += weights[i][key] values[key] for keys [begin, end) of the segment, ascending.
template <typename Kv, int kQueries, int kVectors>
inline void add_values(const AttentionArgs& args, int segment, int begin, int end,
                       const float* weights, float* accumulator, int d) {
  const KvLayout& kv = args.layout;
  Vec sum[kQueries][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = load(accumulator + i * kv.value_stride + d + v * kWidth);
    }
  }
  const int pages_before = segment * (kSegment / kv.block_size);
  for (int key = begin; key < end;) {
    const int page = key / kv.block_size;
    const int page_end = (page + 1) * kv.block_size;
    const int last = page_end < end ? page_end : end;
    const auto* values = values_of<Kv>(args, pages_before + page) + d +
                         static_cast<size_t>(key - page * kv.block_size) * kv.value_stride;
    for (; key < last; ++key, values += kv.value_stride) {
      Vec value[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) value[v] = Kv::load_values(values + v * kWidth);
#pragma GCC unroll 6
      for (int i = 0; i < kQueries; ++i) {
        const Vec w = set1(weights[i * kSegment + key]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = mul_add(value[v], w, sum[i][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      store(accumulator + i * kv.value_stride + d + v * kWidth, sum[i][v]);
    }
  }
}

template <typename Kv, int kQueries>
inline void add_all_values(const AttentionArgs& args, int segment, int begin, int end,
                           const float* weights, float* accumulator) {
  if (begin >= end) return;
  int d = 0;
  for (; d + kValueVectors * kWidth <= args.layout.value_stride; d += kValueVectors * kWidth) {
    add_values<Kv, kQueries, kValueVectors>(args, segment, begin, end, weights, accumulator, d);
  }
  for (; d < args.layout.value_stride; d += kWidth) {
    add_values<Kv, kQueries, 1>(args, segment, begin, end, weights, accumulator, d);
  }
}

// The keys of a segment that query i sees, by position in the segment.
PB_INLINE int first_key(const QueryBlock& block, int i, int segment) {
  const int key = block.begin[i] - segment * kSegment;
  return key > 0 ? key : 0;
}
PB_INLINE int end_key(const QueryBlock& block, int i, int segment) {
  const int key = block.end[i] - segment * kSegment;
  return key < kSegment ? key : kSegment;
}

// scores[0, kSegment) -> exp(scale * score - max) at keys [begin, end), zero elsewhere in their
// vectors.
inline void softmax_row(float* scores, int begin, int end, float scale, float* max_out,
                        float* sum_out) {
  const int first = begin / kWidth * kWidth;
  const Vec minus_infinity = set1(-__builtin_inff());
  const Vec factor = set1(scale);
  Vec highest = minus_infinity;
  for (int i = first; i < end; i += kWidth) {
    const Vec s = keep_lanes(mul(load(scores + i), factor), begin - i, end - i, minus_infinity);
    store(scores + i, s);
    highest = max(highest, s);
  }
  const float top = reduce_max(highest);
  Vec sum = zero();
  for (int i = first; i < end; i += kWidth) {
    const Vec p = exp(sub(load(scores + i), set1(top)));  // 0 of minus infinity, exactly
    store(scores + i, p);
    sum = add(sum, p);
  }
  *max_out = top;
  *sum_out = reduce_add(sum);
}

template <typename Kv, int kQueries>
inline void attend_queries(const AttentionArgs& args, const QueryBlock& block, int from,
                           int segment, float* scores, const SoftmaxState& out) {
  const KvLayout& kv = args.layout;
  int lowest = kSegment, highest = 0;           // keys that any of these queries sees
  int common_begin = 0, common_end = kSegment;  // and that all of them see
  for (int i = from; i < from + kQueries; ++i) {
    const int begin = first_key(block, i, segment);
    const int end = end_key(block, i, segment);
    if (begin < end && begin < lowest) lowest = begin;
    if (begin < end && end > highest) highest = end;
    if (begin > common_begin) common_begin = begin;
    if (end < common_end) common_end = end;
  }
  if (lowest >= highest) return;

  const int pages_before = segment * (kSegment / kv.block_size);
  for (int page = lowest / kv.block_size; page * kv.block_size < highest; ++page) {
    score_page<Kv, kQueries>(kv, keys_of<Kv>(args, pages_before + page), block.q + from,
                             scores + page * kv.block_size);
  }
  float* accumulator = out.accumulator + static_cast<size_t>(from) * kv.value_stride;
  for (int i = 0; i < kQueries * kv.value_stride; i += kWidth) store(accumulator + i, zero());
  for (int i = 0; i < kQueries; ++i) {
    const int begin = first_key(block, from + i, segment);
    const int end = end_key(block, from + i, segment);
    if (begin >= end) continue;
    softmax_row(scores + i * kSegment, begin, end, args.scale, out.max + from + i,
                out.sum + from + i);
    add_all_values<Kv, 1>(args, segment, begin, common_begin < end ? common_begin : end,
                          scores + i * kSegment, accumulator + i * kv.value_stride);
  }
  add_all_values<Kv, kQueries>(args, segment, common_begin, common_end, scores, accumulator);
  for (int i = 0; i < kQueries; ++i) {
    const int begin = first_key(block, from + i, segment);
    const int end = end_key(block, from + i, segment);
    if (begin >= end) continue;
    const int done = common_begin < common_end ? common_end : common_begin;
    add_all_values<Kv, 1>(args, segment, begin > done ? begin : done, end, scores + i * kSegment,
                          accumulator + i * kv.value_stride);
  }
}

// attend_queries for 1 <= n <= kQueries.
template <typename Kv, int kQueries>
PB_INLINE void attend_some(const AttentionArgs& args, const QueryBlock& block, int from, int n,
                           int segment, float* scores, const SoftmaxState& out) {
  if constexpr (kQueries > 1) {
    if (n < kQueries) {
      return attend_some<Kv, kQueries - 1>(args, block, from, n, segment, scores, out);
    }
  }
  attend_queries<Kv, kQueries>(args, block, from, segment, scores, out);
}

template <typename Kv>
inline void attend_block(const AttentionArgs& args, const QueryBlock& block, int segment,
                         float* scores, const SoftmaxState& out) {
  const int n_groups = (block.n + kQueryRows - 1) / kQueryRows;
  int from = 0;
  for (int g = 0; g < n_groups; ++g) {
    const int n = (block.n - from + n_groups - g - 1) / (n_groups - g);
    attend_some<Kv, kQueryRows>(args, block, from, n, segment, scores, out);
    from += n;
  }
}

inline void attend_segment(const AttentionArgs& args, const QueryBlock& block, int segment,
                           float* scores, const SoftmaxState& out) {
  args.layout.bf16 ? attend_block<Bf16Kv>(args, block, segment, scores, out)
                   : attend_block<F32Kv>(args, block, segment, scores, out);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
