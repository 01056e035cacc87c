// Softmax attention of a block of queries over one segment of kSegment positions, and the merge of
// segments (the running softmax of Milakov and Gimelshein, 2018, with fixed borders).
//
// A query's bits depend on its own keys alone. A score is one chain over head_dim. Exponentials are
// computed per lane, and their sum runs in lanes by position in the segment. An output is one chain
// over the keys, in ascending order. A query adds exactly the keys that it sees: if the queries of
// a block see different keys, they share the common range, and each query adds its other keys
// separately. Keys in slots after a query's end are scored, but only in lanes whose results are
// dropped.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/attention/kv_numbers-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/softcap-inl.h"
#include "cpu/kernels/vec/even_groups-inl.h"
#include "cpu/kernels/vec/math-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The queries of a register block; the vectors of keys, and the pairs of vectors of values, that
// they process together.
constexpr int kQueryRows = kRegisters == 32 ? 8 : 6;
constexpr int kKeyVectors = 2;
constexpr int value_twos(int queries) { return kRegisters == 32 && queries <= 6 ? 2 : 1; }
// The number of keys whose values are added, for all columns, before those of the next keys. They
// fit the first-level cache, because the columns of a row of values take many passes.
constexpr int kKeysOfValues = kRegisters == 32 ? kSegment : 64;

PB_INLINE const std::byte* keys_of(const AttentionArgs& args, int kv_block) {
  return args.head + static_cast<size_t>(args.block_table[kv_block]) * args.layout.key_block_bytes;
}
PB_INLINE const std::byte* values_of(const AttentionArgs& args, int kv_block) {
  return args.head + args.layout.values +
         static_cast<size_t>(args.block_table[kv_block]) * args.layout.value_block_bytes;
}

// Prefetches, once per cache line, the data at the distance `ahead` from the i-th piece of kBytes
// of a row.
template <int kBytes>
PB_INLINE void prefetch_piece(const void* piece, int i, ptrdiff_t ahead) {
  if (i * kBytes % 64 != 0) return;
  for (int byte = 0; byte < kBytes; byte += 64) {
    __builtin_prefetch(static_cast<const std::byte*>(piece) + ahead + byte, 0, 2);
  }
}

// sum[i][v] += q[i][d] column[v]. A query's number is read once for all columns.
template <int kQueries, int kVectors>
PB_INLINE void score_column(const Vec (&column)[kVectors], const float* const* q, int d,
                            Vec (&sum)[kQueries][kVectors]) {
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
    const Vec b = set1(q[i][d]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = mul_add(column[v], b, sum[i][v]);
  }
}

// sum[i][v] += q[i] k over head_dim, for kVectors vectors of keys. Prefetches the data at the
// distance `ahead` from the keys.
template <typename Kv, int kQueries, int kVectors>
PB_INLINE void score(const typename Kv::Number* keys, const KvLayout& kv, const float* const* q,
                     ptrdiff_t ahead, Vec (&sum)[kQueries][kVectors]) {
  constexpr int kBytes = kWidth * sizeof(typename Kv::Number);
  for (int d = 0; d < kv.head_dim; ++d, keys += kv.key_stride) {
    Vec column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      prefetch_piece<kBytes>(keys + v * kWidth, v, ahead);
      column[v] = Kv::read(keys + v * kWidth);
    }
    score_column(column, q, d, sum);
  }
}

// Computes the same sums for pairs, first the even number and then the odd one.
template <int kQueries, int kVectors>
PB_INLINE void score_pairs(const uint16_t* keys, const KvLayout& kv, const float* const* q,
                           ptrdiff_t ahead, Vec (&sum)[kQueries][kVectors]) {
  constexpr int kBytes = 2 * kWidth * sizeof(uint16_t);
  Vec column[kVectors];
#pragma GCC unroll 2
  for (int d = 0; d < kv.head_dim; d += 2, keys += 2 * kv.key_stride) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      prefetch_piece<kBytes>(keys + v * 2 * kWidth, v, ahead);
      column[v] = even(load_pairs(keys + v * 2 * kWidth));
    }
    score_column(column, q, d, sum);
    if (d + 1 == kv.head_dim) break;  // an odd head_dim ends with half a pair
    forget(keys);  // reloads the pairs, because both halves do not fit the registers
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) column[v] = odd(load_pairs(keys + v * 2 * kWidth));
    score_column(column, q, d + 1, sum);
  }
}

// Computes kVectors vectors of scores from `slot` of a KV block on.
template <typename Kv, int kQueries, int kVectors>
PB_INLINE void score_slots(const KvLayout& kv, const typename Kv::Number* keys, int slot,
                           const float* const* q, ptrdiff_t ahead, float* scores) {
  Vec sum[kQueries][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = zero();
  }
  if constexpr (Kv::kPaired) {
    score_pairs(keys + 2 * slot, kv, q, ahead, sum);
  } else {
    score<Kv>(keys + slot, kv, q, ahead, sum);
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const int at = slot + v * kWidth;
    [[maybe_unused]] Vec scale;
    if constexpr (Kv::kScaled) {
      const auto* bytes = reinterpret_cast<const std::byte*>(keys) + kv.key_scales;
      scale = load(reinterpret_cast<const float*>(bytes) + at);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kQueries; ++i) {
      if constexpr (Kv::kScaled) sum[i][v] = mul(sum[i][v], scale);
      store_tail(scores + i * kSegment, at, kv.block_size, sum[i][v]);
    }
  }
}

// Computes scores[i][slot] of kQueries queries over the first slots of one KV block, at least
// n_slots.
template <typename Kv, int kQueries>
inline void score_kv_block(const KvLayout& kv, const typename Kv::Number* keys, int n_slots,
                           const float* const* q, ptrdiff_t ahead, float* scores) {
  int slot = 0;
  for (; slot + kKeyVectors * kWidth <= kv.block_size && slot < n_slots;
       slot += kKeyVectors * kWidth) {
    score_slots<Kv, kQueries, kKeyVectors>(kv, keys, slot, q, ahead, scores);
  }
  for (; slot < n_slots; slot += kWidth) {
    score_slots<Kv, kQueries, 1>(kv, keys, slot, q, ahead, scores);
  }
}

// The keys of a segment that are added.
struct Keys {
  int begin;
  int end;
  int first_kv_block;  // of the segment
  int end_kv_block;    // of the sequence
  bool fresh = true;   // true if the data that is read after them is prefetched
};

// Returns the data that is read after the values of a KV block: the keys of the same block of the
// next segment, or of the next item. Returns null if there are none, or if they are not prefetched:
// the first queries of a call do that for all, and keys that only one query sees are few.
PB_INLINE const std::byte* keys_after(const AttentionArgs& args, const Keys& keys, int kv_block) {
  if (!keys.fresh) return nullptr;
  const int next = kv_block + kSegment / args.layout.block_size;
  if (next < keys.end_kv_block) return keys_of(args, next);
  const int i = kv_block - keys.first_kv_block;
  if (i >= args.n_next_blocks) return nullptr;
  return args.next_head +
         static_cast<size_t>(args.next_block_table[i]) * args.layout.key_block_bytes;
}

// accumulator[i] += weights[i][key] values[key] for the keys in ascending order, and for 2 kTwos
// vectors of columns from pair of vectors number `two` on.
template <typename Kv, int kQueries, int kTwos>
inline void add_values(const AttentionArgs& args, const Keys& keys, const float* weights,
                       float* accumulator, int two) {
  using Number = typename Kv::Number;
  const KvLayout& kv = args.layout;
  Vec sum[kQueries][kTwos * 2];
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 2
    for (int t = 0; t < kTwos; ++t) {
      const float* from = accumulator + i * kv.value_stride + Kv::column(two + t);
      sum[i][2 * t] = load(from);
      sum[i][2 * t + 1] = load(from + Kv::kSecond);
    }
  }
  int kv_block = keys.first_kv_block + keys.begin / kv.block_size;
  int slot = keys.begin % kv.block_size;
  for (int key = keys.begin; key < keys.end; ++kv_block, slot = 0) {
    const int kv_block_end = key - slot + kv.block_size;
    const int last = kv_block_end < keys.end ? kv_block_end : keys.end;
    const std::byte* block_values = values_of(args, kv_block);
    const std::byte* next = keys_after(args, keys, kv_block);
    const ptrdiff_t ahead = next == nullptr ? 0 : next - block_values;
    const Number* values =
        reinterpret_cast<const Number*>(block_values) + static_cast<size_t>(slot) * kv.value_stride;
#pragma GCC unroll 4
    for (; key < last; ++key, values += kv.value_stride) {
      Vec value[kTwos * 2];
#pragma GCC unroll 2
      for (int t = 0; t < kTwos; ++t) {
        constexpr int kNumbers = 2 * kWidth;
        prefetch_piece<kNumbers * sizeof(Number)>(values + (two + t) * kNumbers, t, ahead);
        load_two<Kv>(values, two + t, value[2 * t], value[2 * t + 1]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kQueries; ++i) {
        const Vec w = set1(weights[i * kSegment + key]);
#pragma GCC unroll 4
        for (int v = 0; v < kTwos * 2; ++v) sum[i][v] = mul_add(value[v], w, sum[i][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 2
    for (int t = 0; t < kTwos; ++t) {
      float* to = accumulator + i * kv.value_stride + Kv::column(two + t);
      store(to, sum[i][2 * t]);
      store(to + Kv::kSecond, sum[i][2 * t + 1]);
    }
  }
}

template <typename Kv, int kQueries>
inline void add_all_values(const AttentionArgs& args, const Keys& keys, const float* weights,
                           float* accumulator) {
  if (keys.begin >= keys.end) return;
  constexpr int kTwos = value_twos(kQueries);
  const int n_twos = args.layout.value_stride / (2 * kWidth);
  for (Keys part = keys; part.begin < keys.end; part.begin = part.end) {
    part.end = part.begin / kKeysOfValues * kKeysOfValues + kKeysOfValues;
    if (part.end > keys.end) part.end = keys.end;
    int two = 0;
    for (; two + kTwos <= n_twos; two += kTwos) {
      add_values<Kv, kQueries, kTwos>(args, part, weights, accumulator, two);
    }
    for (; two < n_twos; ++two) add_values<Kv, kQueries, 1>(args, part, weights, accumulator, two);
  }
}

// Return the first and the end key of a segment that query i sees, by position in the segment.
PB_INLINE int first_key(const QueryBlock& block, int i, int segment) {
  const int key = block.begin[i] - segment * kSegment;
  return key > 0 ? key : 0;
}
PB_INLINE int end_key(const QueryBlock& block, int i, int segment) {
  const int key = block.end[i] - segment * kSegment;
  return key < kSegment ? key : kSegment;
}

// The keys of a segment that some queries see, and those that all of them see, by position in the
// segment.
struct SeenKeys {
  int begin = kSegment, end = 0;
  int common_begin = 0, common_end = kSegment;
};

// Returns the seen keys of the queries [first, end).
PB_INLINE SeenKeys seen_keys(const QueryBlock& block, int first, int end, int segment) {
  SeenKeys seen;
  for (int i = first; i < end; ++i) {
    const int begin_of = first_key(block, i, segment);
    const int end_of = end_key(block, i, segment);
    if (begin_of < end_of && begin_of < seen.begin) seen.begin = begin_of;
    if (begin_of < end_of && end_of > seen.end) seen.end = end_of;
    if (begin_of > seen.common_begin) seen.common_begin = begin_of;
    if (end_of < seen.common_end) seen.common_end = end_of;
  }
  return seen;
}

// Returns the end of the KV blocks that the queries of the call see.
PB_INLINE int end_kv_block_of(const AttentionArgs& args, const QueryBlock& block) {
  int end = 0;
  for (int i = args.first_query; i < args.end_query; ++i) {
    if (block.end[i] > end) end = block.end[i];
  }
  return (end + args.layout.block_size - 1) / args.layout.block_size;
}

// Replaces scores[0, kSegment) by exp(scale * score - max) at keys [begin, end), and by zero
// elsewhere in their vectors; then multiplies by the scales of the values, if they have any. The
// sum is over the exponentials.
template <typename Kv>
inline void softmax_row(float* scores, int begin, int end, float scale,
                        [[maybe_unused]] const float* value_scales, float* max_out,
                        float* sum_out) {
  const int first = begin / kWidth * kWidth;
  const Vec minus_infinity = set1(-__builtin_inff());
  const Vec factor = set1(scale);
  Vec highest = minus_infinity;
  for (int i = first; i < end; i += kWidth) {
    Vec s = mul(load(scores + i), factor);
    if (i < begin || i + kWidth > end) s = keep_lanes(s, begin - i, end - i, minus_infinity);
    store(scores + i, s);
    highest = max(highest, s);
  }
  const float top = reduce_max(highest);
  Vec sum = zero();
  for (int i = first; i < end; i += kWidth) {
    const Vec p = exp_of_negative(sub(load(scores + i), set1(top)));  // exactly 0 at -infinity
    sum = add(sum, p);
    store(scores + i, Kv::kScaled ? mul(p, load(value_scales + i)) : p);
  }
  *max_out = top;
  *sum_out = reduce_add(sum);
}

// scratch: scores of the queries (kQueries, kSegment), and scales of the values (kSegment).
template <typename Kv, int kQueries>
inline void attend_queries(const AttentionArgs& args, const QueryBlock& block, int from,
                           int segment, int end_kv_block, float* scratch, const SoftmaxState& out) {
  using Number = typename Kv::Number;
  const KvLayout& kv = args.layout;
  const SeenKeys seen = seen_keys(block, from, from + kQueries, segment);
  if (seen.begin >= seen.end) return;

  const bool fresh = from == args.first_query;
  float* scores = scratch;
  float* value_scales = scratch + kQueriesPerBlock * kSegment;
  const int first_kv_block = segment * (kSegment / kv.block_size);
  for (int kv_block = seen.begin / kv.block_size; kv_block * kv.block_size < seen.end; ++kv_block) {
    const std::byte* keys = keys_of(args, first_kv_block + kv_block);
    const std::byte* values = values_of(args, first_kv_block + kv_block);
    const int first = kv_block * kv.block_size;
    const int n_slots = seen.end - first < kv.block_size ? seen.end - first : kv.block_size;
    score_kv_block<Kv, kQueries>(kv, reinterpret_cast<const Number*>(keys), n_slots, block.q + from,
                                 fresh ? values - keys : 0, scores + first);
    if constexpr (Kv::kScaled) {
      const auto* scales = reinterpret_cast<const float*>(values + kv.value_scales);
      for (int slot = 0; slot < kv.block_size; ++slot) value_scales[first + slot] = scales[slot];
    }
  }
  float* accumulator = out.accumulator + static_cast<size_t>(from) * kv.value_stride;
  for (int i = 0; i < kQueries * kv.value_stride; i += kWidth) store(accumulator + i, zero());
  const auto add_alone = [&](int i, int begin, int end) {
    add_all_values<Kv, 1>(args, {begin, end, first_kv_block, end_kv_block, false},
                          scores + i * kSegment, accumulator + i * kv.value_stride);
  };
  for (int i = 0; i < kQueries; ++i) {
    const int begin = first_key(block, from + i, segment);
    const int end = end_key(block, from + i, segment);
    if (begin >= end) continue;
    float* row = scores + i * kSegment;
    const float scale = cap_scores(args, row, begin, end);
    softmax_row<Kv>(row, begin, end, scale, value_scales, out.max + from + i, out.sum + from + i);
    add_alone(i, begin, seen.common_begin < end ? seen.common_begin : end);
  }
  add_all_values<Kv, kQueries>(
      args, {seen.common_begin, seen.common_end, first_kv_block, end_kv_block, fresh}, scores,
      accumulator);
  const int done = seen.common_begin < seen.common_end ? seen.common_end : seen.common_begin;
  for (int i = 0; i < kQueries; ++i) {
    const int begin = first_key(block, from + i, segment);
    add_alone(i, begin > done ? begin : done, end_key(block, from + i, segment));
  }
}

template <typename Kv>
inline void attend_block(const AttentionArgs& args, const QueryBlock& block, int segment,
                         float* scratch, const SoftmaxState& out) {
  const int end_kv_block = end_kv_block_of(args, block);
  for_even_groups<kQueryRows>(args.first_query, args.end_query, [&]<int kQueries>(int from) {
    attend_queries<Kv, kQueries>(args, block, from, segment, end_kv_block, scratch, out);
  });
}

inline void attend_segment(const AttentionArgs& args, const QueryBlock& block, int segment,
                           float* scratch, const SoftmaxState& out) {
  switch (args.layout.numbers) {
    case KvNumbers::kF32:
      return attend_block<F32Kv>(args, block, segment, scratch, out);
    case KvNumbers::kBf16:
      return attend_block<Bf16Kv>(args, block, segment, scratch, out);
    case KvNumbers::kF16:
      return attend_block<F16Kv>(args, block, segment, scratch, out);
    case KvNumbers::kInt8:
      return attend_block<Int8Kv>(args, block, segment, scratch, out);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
