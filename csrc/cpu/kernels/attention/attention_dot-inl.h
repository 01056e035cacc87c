// Attention by vdpbf16ps, for keys and values in bf16 and whole chunks of head_dim.
// attention_bf16-inl.h describes the rounding and the masks.
//
// Each output is one chain: scores over pairs of head_dim, values over pairs of keys, both
// ascending. The rounding mode of the thread does not affect vdpbf16ps.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/attention/attention-inl.h"
#include "cpu/kernels/attention/attention_bf16-inl.h"
#include "cpu/kernels/vec/even_groups-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The queries of a register block, and the pairs of vectors of values for each number of queries:
// as many as 24 vectors of sums allow, so that few queries read whole rows of values.
constexpr int kDotQueries = 12;
constexpr int dot_twos(int queries) { return queries <= 3 ? 4 : queries <= 6 ? 2 : 1; }

// The distance between two rounded queries. It is a constant, because the compiler has no register
// for each query, and not a power of two, which would put all queries into the same lines of the
// first-level cache.
constexpr int kQueryStride = kMostPairedDim + kChunk;

struct DotScratch {
  alignas(64) ScoreRow scores[kQueriesPerBlock];
  uint16_t queries[kQueriesPerBlock][kQueryStride];
};
static_assert(sizeof(DotScratch) <= kAttentionScratch * sizeof(float));

// Prefetches every other cache line at the distance `ahead`: the adjacent line arrives as fast as
// if it were prefetched, and a core can wait for few lines at a time.
PB_INLINE void prefetch_two_lines(const void* line, int i, ptrdiff_t ahead) {
  if (i % 2 == 0) __builtin_prefetch(static_cast<const std::byte*>(line) + ahead, 0, 2);
}

// Computes scores of kQueries queries with kVectors vectors of keys. With `fresh`, prefetches at
// the distance `ahead` the values in the same KV blocks.
template <int kQueries, int kVectors>
PB_INLINE void dot_scores(const KvLayout& kv, const std::byte* const* keys, const ptrdiff_t* ahead,
                          bool fresh, const uint16_t* q, int step, float* scores) {
  const int64_t stride = kv.key_stride * 4;
  Vec sum[kQueries][kVectors] = {};
  int64_t at = 0;
  for (int d = 0; d < kv.head_dim; d += 2, at += stride) {
    Pairs column[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if (fresh) prefetch_two_lines(keys[v] + at, v, ahead[v]);
      column[v] = load_pairs(reinterpret_cast<const uint16_t*>(keys[v] + at));
    }
#pragma GCC unroll 12
    for (int i = 0; i < kQueries; ++i) {
      const Pairs b = broadcast_pair(q + i * kQueryStride + d);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] = add_dot(sum[i][v], column[v], b);
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 12
    for (int i = 0; i < kQueries; ++i) store(scores + i * kScoreStride + v * step, sum[i][v]);
  }
}

// Computes the scores of n queries like TileQueries (amx/attention-inl.h).
struct DotQueries {
  const uint16_t* numbers;  // (n, kQueryStride)
  int n;

  template <int kVectors>
  PB_INLINE void score(const KvLayout& kv, const std::byte* const* keys, const ptrdiff_t* ahead,
                       int step, float* scores) const {
    for_even_groups<kDotQueries>(0, n, [&]<int kQueries>(int from) {
      dot_scores<kQueries, kVectors>(kv, keys, ahead, from == 0, numbers + from * kQueryStride,
                                     step, scores + from * kScoreStride);
    });
  }
};

// The values of the keys that a call sees, chunk by chunk, and the data that is prefetched with
// them.
struct ChunkRows {
  const uint16_t* rows[kSegment];
  ptrdiff_t ahead[kSegment / kChunk][2];
  int begin, end;  // chunks

  explicit ChunkRows(const ValueRows& values)
      : begin(values.keys.begin / kChunk), end((values.keys.end + kChunk - 1) / kChunk) {
    for (int chunk = begin; chunk < end; ++chunk) {
      values.chunk(chunk * kChunk, rows + chunk * kChunk, ahead[chunk]);
    }
  }
};

// out (kQueries, out_stride) = probabilities (kQueries, 2 kScoreStride) times values, for kTwos *
// 32 columns from `column` on.
template <int kQueries, int kTwos>
PB_INLINE void dot_values(const ChunkRows& values, const uint16_t* probabilities, int column,
                          bool fresh, float* out, int out_stride) {
  Vec sum[kQueries][2 * kTwos] = {};
  for (int chunk = values.begin; chunk < values.end; ++chunk) {
    const uint16_t* const* rows = values.rows + chunk * kChunk;
    const uint16_t* pairs = probabilities + chunk * kChunk;
    for (int i = 0; i < kChunk; i += 2, pairs += 2) {
      const ptrdiff_t ahead = values.ahead[chunk][i / kWidth];
      Pairs value[2 * kTwos];
#pragma GCC unroll 4
      for (int t = 0; t < kTwos; ++t) {
        const uint16_t* first = rows[i] + column + t * kChunk;
        const uint16_t* second = rows[i + 1] + column + t * kChunk;
        if (fresh) prefetch_two_lines(first, t, ahead);
        if (fresh) prefetch_two_lines(second, t, ahead);
        const Pairs x = load_pairs(first), y = load_pairs(second);
        value[2 * t] = evens(x, y);
        value[2 * t + 1] = odds(x, y);
      }
#pragma GCC unroll 12
      for (int q = 0; q < kQueries; ++q) {
        const Pairs p = broadcast_pair(pairs + q * 2 * kScoreStride);
#pragma GCC unroll 8
        for (int v = 0; v < 2 * kTwos; ++v) sum[q][v] = add_dot(sum[q][v], value[v], p);
      }
    }
  }
#pragma GCC unroll 12
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < 2 * kTwos; ++v) {
      store(out + q * out_stride + column + v * kWidth, sum[q][v]);
    }
  }
}

// Adds the values of all columns for n queries, strip by strip: a strip stays in the first-level
// cache while all queries read it.
inline void add_dot_values(const ValueRows& values, const float* probabilities, int n, float* out) {
  const KvLayout& kv = values.args.layout;
  const auto* pairs = reinterpret_cast<const uint16_t*>(probabilities);
  const ChunkRows rows(values);
  int column = 0;
  const auto strips = [&]<int kTwos>() {
    for (; column + kTwos * kChunk <= kv.head_dim; column += kTwos * kChunk) {
      for_even_groups<kDotQueries>(0, n, [&]<int kQueries>(int from) {
        if constexpr (kTwos <= dot_twos(kQueries)) {
          dot_values<kQueries, kTwos>(rows, pairs + from * 2 * kScoreStride, column, from == 0,
                                      out + from * kv.value_stride, kv.value_stride);
        }
      });
    }
  };
  if (n <= 3) strips.template operator()<4>();
  if (n <= 6) strips.template operator()<2>();
  strips.template operator()<1>();
}

inline void attend_segment_dot(const AttentionArgs& args, const QueryBlock& block, int segment,
                               float* scratch, const SoftmaxState& out) {
  const KvLayout& kv = args.layout;
  if (!fits_pairs(kv)) return attend_segment(args, block, segment, scratch, out);
  const SeenKeys seen = seen_keys(block, args.first_query, args.end_query, segment);
  if (seen.begin >= seen.end) return;
  auto& s = *reinterpret_cast<DotScratch*>(scratch);
  const int first_kv_block = segment * (kSegment / kv.block_size);
  const Keys keys{seen.begin, seen.end, first_kv_block, end_kv_block_of(args, block)};
  const int n = args.end_query - args.first_query;
  round_queries(args, block, kQueryStride, s.queries[0]);
  score_keys(args, first_kv_block, seen.begin, seen.end, DotQueries{s.queries[0], n}, s.scores[0]);
  attend_scored<ChunkForm::kInOrder>(
      args, block, segment, seen, keys, s.scores, out,
      [&](const ValueRows& values, int first, int n_rows, float* accumulator) {
        add_dot_values(values, s.scores[first], n_rows, accumulator);
      });
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
