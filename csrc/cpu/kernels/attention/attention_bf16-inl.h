// The common parts of attention with keys and values in bf16 on targets that multiply pairs of
// bf16: on AMX (amx/attention-inl.h) and by vdpbf16ps (attention_dot-inl.h). Queries and
// probabilities are rounded to bf16; the sum of a segment's exponentials is over the values before
// rounding.
//
// A query's bits depend on its own keys alone, which are processed in chunks of 32 by absolute
// position (kChunk), in ascending order. A key that a query does not see has the probability zero,
// and zero times a finite number adds nothing. Keys that no query of the call sees are read as
// zeros, and keys that only some queries see are checked first: if one of them is not finite, the
// values of each query are added separately, by the same products. Numbers below 2^-126, including
// probabilities, count as zero.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/attention/attention-inl.h"
#include "cpu/kernels/attention/softmax_bf16-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/softcap-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kMostPairedDim = 256;  // greatest head_dim
// A vector of scores may extend beyond the segment if KV blocks are narrower than a vector.
constexpr int kScoreStride = kSegment + kWidth;
// The scores of a query, which are later replaced by its probabilities as bf16, from the start of
// the row on.
using ScoreRow = float[kScoreStride];

alignas(64) constexpr uint16_t kNoValue[kMostPairedDim] = {};

PB_INLINE bool fits_pairs(const KvLayout& kv) {
  return kv.numbers == KvNumbers::kBf16 && kv.head_dim % kChunk == 0 &&
         kv.head_dim <= kMostPairedDim;
}

// Rounds queries to `to` (queries, stride).
PB_INLINE void round_queries(const AttentionArgs& args, const QueryBlock& block, int stride,
                             uint16_t* to) {
  for (int i = args.first_query; i < args.end_query; ++i, to += stride) {
    for (int d = 0; d < args.layout.head_dim; d += kWidth) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d),
                          (__m256i)_mm512_cvtneps_pbh(load(block.q[i] + d)));
    }
  }
}

// Computes scores of keys [begin, end) of a segment and of some neighbours, two tiles at a time; in
// KV blocks of 32 these are neighbouring lines. Tiles are stored in ascending order: the next tile
// overwrites the part of a tile beyond the end of its KV block.
template <typename Queries>
inline void score_keys(const AttentionArgs& args, int first_kv_block, int begin, int end,
                       const Queries& queries, float* scores) {
  const KvLayout& kv = args.layout;
  const int step = kv.block_size < kWidth ? kv.block_size : kWidth;
  for (int key = begin / step * step; key < end; key += 2 * step) {
    const std::byte* keys[2];
    ptrdiff_t ahead[2];
    const int n = key + step < end ? 2 : 1;
    for (int t = 0; t < n; ++t) {
      const int of_tile = key + t * step;
      const int kv_block = first_kv_block + of_tile / kv.block_size;
      const std::byte* of_kv_block = keys_of(args, kv_block);
      keys[t] = of_kv_block + static_cast<size_t>(of_tile % kv.block_size) * 4;
      ahead[t] = values_of(args, kv_block) - of_kv_block;
    }
    if (n == 2) {
      queries.template score<2>(kv, keys, ahead, step, scores + key);
    } else {
      queries.template score<1>(kv, keys, ahead, step, scores + key);
    }
  }
}

// The values of keys [begin, end) of a segment.
struct ValueRows {
  const AttentionArgs& args;
  Keys keys;

  // Returns the value of one key.
  PB_INLINE const uint16_t* at(int key) const {
    const int block_size = args.layout.block_size;
    const std::byte* values = values_of(args, keys.first_kv_block + key / block_size);
    return reinterpret_cast<const uint16_t*>(values) +
           static_cast<size_t>(key % block_size) * args.layout.value_stride;
  }

  // Returns the rows of a chunk, with zeros for keys outside [begin, end). The data that is read
  // next is at the distance `ahead` from each half.
  PB_INLINE void chunk(int first, const uint16_t** rows, ptrdiff_t* ahead) const {
    const int block_size = args.layout.block_size;
    const int run = block_size < kWidth ? block_size : kWidth;
    ahead[0] = ahead[1] = 0;
    for (int i = 0; i < kChunk; i += run) {
      const int key = first + i;
      if (key + run <= keys.begin || key >= keys.end) {
        for (int j = 0; j < run; ++j) rows[i + j] = kNoValue;
        continue;
      }
      const uint16_t* row = at(key);
      for (int j = 0; j < run; ++j) rows[i + j] = row + j * args.layout.value_stride;
      const int kv_block = keys.first_kv_block + key / block_size;
      const std::byte* next = keys_after(args, keys, kv_block);
      if (next != nullptr) ahead[i / kWidth] = next - values_of(args, kv_block);
    }
    for (int i = 0; first + i < keys.begin; ++i) rows[i] = kNoValue;
    for (int i = keys.end - first; i < kChunk; ++i) rows[i] = kNoValue;
  }
};

PB_INLINE bool finite(const uint16_t* row, int n) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 bad = 0;
  for (int i = 0; i < n; i += kChunk) {
    const __m512i bits = _mm512_and_si512(_mm512_loadu_si512(row + i), exponent);
    bad |= _mm512_cmpeq_epi16_mask(bits, exponent);
  }
  return bad == 0;
}

// Returns true if the values that only some of the queries see are all finite, so that the other
// queries may multiply them by zero.
inline bool partly_seen_is_finite(const AttentionArgs& args, int first_kv_block,
                                  const SeenKeys& seen) {
  const ValueRows values{args, {seen.begin, seen.end, first_kv_block, first_kv_block}};
  const auto all_finite = [&](int begin, int end) {
    for (int key = begin; key < end; ++key) {
      if (!finite(values.at(key), args.layout.head_dim)) return false;
    }
    return true;
  };
  if (seen.common_begin >= seen.common_end) return all_finite(seen.begin, seen.end);
  return all_finite(seen.begin, seen.common_begin) && all_finite(seen.common_end, seen.end);
}

// Turns the scores of a call's queries into probabilities, and adds the values: add(ValueRows,
// first, n, accumulator) does so for n queries, which are all of the call or one.
template <ChunkForm kForm, typename Add>
inline void attend_scored(const AttentionArgs& args, const QueryBlock& block, int segment,
                          const SeenKeys& seen, const Keys& keys, ScoreRow* scores,
                          const SoftmaxState& out, Add add) {
  const auto for_queries = [&](auto body) {
    for (int i = args.first_query; i < args.end_query; ++i) {
      const int begin = first_key(block, i, segment);
      const int end = end_key(block, i, segment);
      if (begin < end) body(i, begin, end);
    }
  };
  for_queries([&](int i, int begin, int end) {
    float* row = scores[i - args.first_query];
    const float scale = cap_scores(args, row, begin, end);
    softmax_bf16<kForm>(row, begin, end, seen.begin, seen.end, scale, out.max + i, out.sum + i);
  });
  const auto accumulator = [&](int i) {
    return out.accumulator + static_cast<size_t>(i) * args.layout.value_stride;
  };
  if (partly_seen_is_finite(args, keys.first_kv_block, seen)) {
    add(ValueRows{args, keys}, 0, args.end_query - args.first_query, accumulator(args.first_query));
    return;
  }
  for_queries([&](int i, int begin, int end) {
    const Keys own{begin, end, keys.first_kv_block, keys.end_kv_block};
    add(ValueRows{args, own}, i - args.first_query, 1, accumulator(i));
  });
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
