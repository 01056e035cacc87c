// Attention on the tile unit (Intel AMX), for keys and values in bf16 and whole tiles of head_dim.
// What the vectors do otherwise: queries and probabilities are rounded to bf16; the sum of a
// segment's exponentials is of those before rounding.
//
// A query's bits hang on its own keys alone. The queries of a call are rows of the same tiles, and
// rows do not meet. Scores: products of 32 d's, ascending, whatever the columns beside a key.
// Values: products of 32 keys by absolute position (kChunk), ascending. A key that a query does not
// see has the probability zero there, and zero times what is finite adds nothing: so keys that no
// query of the call sees are read as zeros, and those that only some see are looked at first. Where
// one of them is not finite, the values of each query are added alone, through the same products.
// Numbers below 2^-126 count as zero, probabilities among them. One or two queries that see the
// same keys go through the same products on vectors (amx/attention_small_batch-inl.h).
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/amx/attention_small_batch-inl.h"
#include "cpu/kernels/amx/softmax-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/attention-inl.h"
#include "cpu/kernels/kv_numbers-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kMostTileDim = 256;  // head_dim
constexpr int kStripTiles = 4;     // of columns of values, that are added up at once
// A tile of scores may reach a vector past the segment, where KV blocks are narrower than a tile.
constexpr int kScoreStride = kSegment + kWidth;
constexpr int kRowBytes = kScoreStride * sizeof(float);
constexpr int kSmallBatch = 2;                  // queries: vectors take no longer than tiles
constexpr int kTilePairs = kTileRows * kChunk;  // numbers of a tile of bf16

struct TileScratch {
  // Of each query; then its probabilities as bf16, from the start of its row on.
  alignas(64) float scores[kQueriesPerBlock][kScoreStride];
  uint16_t queries[kQueriesPerBlock * kMostTileDim];
  uint16_t values[2][kStripTiles][kTilePairs];  // of two chunks, in turns
  float small_batch[kSmallBatch * kMostTileDim];
};
static_assert(sizeof(TileScratch) <= kAttentionScratch * sizeof(float));

alignas(64) constexpr uint16_t kNoValue[kMostTileDim] = {};

PB_INLINE bool fits_tiles(const KvLayout& kv) {
  return kv.numbers == KvNumbers::kBf16 && kv.head_dim % kChunk == 0 && kv.head_dim <= kMostTileDim;
}

// The keys of a segment that some of the queries see, and those that all see, by position in the
// segment. Queries that see none count for neither.
struct SeenKeys {
  int begin = kSegment, end = 0;
  int common_begin = 0, common_end = kSegment;
};

PB_INLINE SeenKeys seen_keys(const AttentionArgs& args, const QueryBlock& block, int segment) {
  SeenKeys seen;
  for (int i = args.first_query; i < args.end_query; ++i) {
    const int begin = first_key(block, i, segment);
    const int end = end_key(block, i, segment);
    if (begin >= end) continue;
    if (begin < seen.begin) seen.begin = begin;
    if (end > seen.end) seen.end = end;
    if (begin > seen.common_begin) seen.common_begin = begin;
    if (end < seen.common_end) seen.common_end = end;
  }
  return seen;
}

inline void round_queries(const AttentionArgs& args, const QueryBlock& block, uint16_t* to) {
  for (int i = args.first_query; i < args.end_query; ++i) {
    for (int d = 0; d < args.layout.head_dim; d += kWidth, to += kWidth) {
      store_bf16_n(to, round_to_bf16(load(block.q[i] + d)), kWidth);
    }
  }
}

// The scores of queries: of up to kTileRows, or, kBelow, of more, in two tiles that share what is
// loaded of the keys.
template <bool kBelow>
struct TileQueries {
  const uint16_t* numbers;  // (queries, head_dim)

  // Computes the scores of kTiles tiles of keys, 1 or 2, at the given addresses. What lies `ahead`
  // of them, the values in the same KV blocks, is prefetched.
  template <int kTiles>
  PB_INLINE void score(const KvLayout& kv, const std::byte* const* keys, const ptrdiff_t* ahead,
                       int step, float* scores) const {
    const int64_t stride = kv.key_stride * 4;
    const auto prefetch_values = [=](const std::byte* values) {
#pragma GCC unroll 16
      for (int row = 0; row < kTileRows; ++row) __builtin_prefetch(values + row * stride, 0, 2);
    };
    const uint16_t* below = numbers + kTileRows * kv.head_dim;
    tile_zero<0>();
    if constexpr (kTiles > 1) tile_zero<1>();
    if constexpr (kBelow) tile_zero<2>();
    if constexpr (kBelow && kTiles > 1) tile_zero<3>();
    for (int d = 0; d < kv.head_dim; d += kChunk) {
      const int64_t at = d / 2 * stride;
      tile_load<4>(numbers + d, kv.head_dim * 2);
      tile_load_streamed<6>(keys[0] + at, stride);
      prefetch_values(keys[0] + at + ahead[0]);
      tile_bf16_product<0, 4, 6>();
      if constexpr (kBelow) tile_load<5>(below + d, kv.head_dim * 2);
      if constexpr (kBelow) tile_bf16_product<2, 5, 6>();
      if constexpr (kTiles > 1) {
        tile_load_streamed<7>(keys[1] + at, stride);
        prefetch_values(keys[1] + at + ahead[1]);
        tile_bf16_product<1, 4, 7>();
        if constexpr (kBelow) tile_bf16_product<3, 5, 7>();
      }
    }
    float* scores_below = scores + kTileRows * kScoreStride;
    tile_store<0>(scores, kRowBytes);
    if constexpr (kTiles > 1) tile_store<1>(scores + step, kRowBytes);
    if constexpr (kBelow) tile_store<2>(scores_below, kRowBytes);
    if constexpr (kBelow && kTiles > 1) tile_store<3>(scores_below + step, kRowBytes);
  }
};

// Scores of keys [begin, end) of a segment and of some beside them, two tiles at a time: of KV
// blocks of 32 these are neighbouring lines. Tiles are stored in ascending order: what one of them
// has past the end of its KV block, the next one overwrites.
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

  // The value of one key.
  PB_INLINE const uint16_t* at(int key) const {
    const int block_size = args.layout.block_size;
    const std::byte* values = values_of(args, keys.first_kv_block + key / block_size);
    return reinterpret_cast<const uint16_t*>(values) +
           static_cast<size_t>(key % block_size) * args.layout.value_stride;
  }

  // Those of a chunk; zeros for keys that are not among these. What is wanted after them lies
  // `ahead` bytes from those of either half.
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

// Whether the values that only some of the queries see are all finite, so that the others may
// multiply them by zero.
inline bool partly_seen_is_finite(const AttentionArgs& args, int first_kv_block,
                                  const SeenKeys& seen) {
  const ValueRows values{args, {seen.begin, seen.end, first_kv_block, first_kv_block}};
  for (int key = seen.begin; key < seen.end; ++key) {
    if (key >= seen.common_begin && key < seen.common_end) continue;
    if (!finite(values.at(key), args.layout.head_dim)) return false;
  }
  return true;
}

// A chunk of values, kTiles * 16 columns from `column` on, as tiles: row i of one holds pairs of
// keys i and i + 16.
template <int kTiles>
PB_INLINE void pair_values(const uint16_t* const* rows, const ptrdiff_t* ahead, int column,
                           uint16_t (*tiles)[kTilePairs]) {
  const __mmask32 odd = 0xaaaaaaaau;
#pragma GCC unroll 4
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; t += 2) {
      const uint16_t* first = rows[i] + column + t * kWidth;
      const uint16_t* second = rows[i + kTileRows] + column + t * kWidth;
      const __m512i x = _mm512_loadu_si512(first);
      const __m512i y = _mm512_loadu_si512(second);
      prefetch_piece<64>(first, t, ahead[0]);
      prefetch_piece<64>(second, t, ahead[1]);
      _mm512_store_si512(tiles[t] + i * kChunk,
                         _mm512_mask_blend_epi16(odd, x, _mm512_slli_epi32(y, 16)));
      _mm512_store_si512(tiles[t + 1] + i * kChunk,
                         _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(x, 16), y));
    }
  }
}

// The sums += probabilities (rows, 32) times a chunk of values.
template <int kTiles, bool kBelow>
PB_INLINE void multiply_values(const uint16_t* probabilities, const uint16_t (*tiles)[kTilePairs]) {
  tile_load<4>(probabilities, kRowBytes);
  tile_load<6>(tiles[0], 64);
  tile_bf16_product<0, 4, 6>();
  tile_load<7>(tiles[1], 64);
  tile_bf16_product<1, 4, 7>();
  if constexpr (kBelow) {
    tile_load<5>(probabilities + kTileRows * (kRowBytes / 2), kRowBytes);
    tile_bf16_product<2, 5, 6>();
    tile_bf16_product<3, 5, 7>();
  } else if constexpr (kTiles > 2) {
    tile_load<6>(tiles[2], 64);
    tile_bf16_product<2, 4, 6>();
    tile_load<7>(tiles[3], 64);
    tile_bf16_product<3, 4, 7>();
  }
}

// out (rows, value_stride) = probabilities (rows, kScoreStride * 2) times values, kTiles * 16
// columns from `column` on. The chunk to come is laid out while the last one is multiplied.
template <int kTiles, bool kBelow>
inline void add_strip(const ValueRows& values, const uint16_t* probabilities, int column,
                      uint16_t (*tiles)[kStripTiles][kTilePairs], float* out) {
  static_assert(!kBelow || kTiles == 2);
  constexpr bool kFourSums = kBelow || kTiles > 2;
  const int begin = values.keys.begin / kChunk;
  const int end = (values.keys.end + kChunk - 1) / kChunk;
  const uint16_t* rows[kChunk];
  ptrdiff_t ahead[2];
  const auto lay_out = [&](int chunk) {
    values.chunk(chunk * kChunk, rows, ahead);
    pair_values<kTiles>(rows, ahead, column, tiles[chunk % 2]);
  };
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (kFourSums) tile_zero<2>();
  if constexpr (kFourSums) tile_zero<3>();
  lay_out(begin);
  for (int chunk = begin; chunk < end; ++chunk) {
    if (chunk + 1 < end) lay_out(chunk + 1);
    multiply_values<kTiles, kBelow>(probabilities + chunk * kChunk, tiles[chunk % 2]);
  }
  const int stride = values.args.layout.value_stride;
  const int64_t out_bytes = stride * static_cast<int64_t>(sizeof(float));
  out += column;
  tile_store<0>(out, out_bytes);
  tile_store<1>(out + kWidth, out_bytes);
  out += kBelow ? kTileRows * stride : 2 * kWidth;
  if constexpr (kFourSums) tile_store<2>(out, out_bytes);
  if constexpr (kFourSums) tile_store<3>(out + kWidth, out_bytes);
}

// Adds up the values of all columns, strip by strip.
template <bool kBelow>
inline void add_values_of(const ValueRows& values, const float* probabilities, TileScratch& s,
                          float* out) {
  constexpr int kTiles = kBelow ? 2 : kStripTiles;
  const auto* pairs = reinterpret_cast<const uint16_t*>(probabilities);
  const int head_dim = values.args.layout.head_dim;
  int column = 0;
  for (; column + kTiles * kWidth <= head_dim; column += kTiles * kWidth) {
    add_strip<kTiles, kBelow>(values, pairs, column, s.values, out);
  }
  if (column < head_dim) add_strip<2, kBelow>(values, pairs, column, s.values, out);
}

// Attention on vectors for kQueries queries that all see the same keys.
template <int kQueries>
inline void attend_small_batch(const AttentionArgs& args, const QueryBlock& block, const Keys& keys,
                               TileScratch& s, const SoftmaxState& out) {
  const KvLayout& kv = args.layout;
  for (int q = 0; q < kQueries; ++q) {
    const float* from = block.q[args.first_query + q];
    float* to = s.small_batch + q * kv.head_dim;
    for (int d = 0; d < kv.head_dim; d += kWidth) store(to + d, round_to_bf16(load(from + d)));
  }
  {
    const TileRounding rounding;
    score_keys(args, keys.first_kv_block, keys.begin, keys.end,
               SmallBatchQueries<kQueries>{s.small_batch, kScoreStride}, s.scores[0]);
  }
  for (int q = 0; q < kQueries; ++q) {
    const int i = args.first_query + q;
    const float scale = cap_scores(args, s.scores[q], keys.begin, keys.end);
    tile_softmax<false>(s.scores[q], keys.begin, keys.end, keys.begin, keys.end, scale, out.max + i,
                        out.sum + i);
  }
  const TileRounding rounding;
  add_small_batch<kQueries>(
      ValueRows{args, keys}, s.scores[0], kScoreStride,
      out.accumulator + static_cast<size_t>(args.first_query) * kv.value_stride);
}

inline void attend_on_tiles(const AttentionArgs& args, const QueryBlock& block, int segment,
                            TileScratch& s, const SoftmaxState& out) {
  const KvLayout& kv = args.layout;
  const SeenKeys seen = seen_keys(args, block, segment);
  if (seen.begin >= seen.end) return;
  const int first_kv_block = segment * (kSegment / kv.block_size);
  const Keys keys{seen.begin, seen.end, first_kv_block, end_kv_block_of(args, block)};
  const int n = args.end_query - args.first_query;
  if (seen.begin == seen.common_begin && seen.end == seen.common_end) {
    if (n == 1) return attend_small_batch<1>(args, block, keys, s, out);
    if (n == 2) return attend_small_batch<2>(args, block, keys, s, out);
  }
  const bool below = n > kTileRows;
  configure_tiles(below ? kTileRows : n, below ? n - kTileRows : n);
  round_queries(args, block, s.queries);
  const auto score = [&](auto queries) {
    score_keys(args, first_kv_block, seen.begin, seen.end, queries, s.scores[0]);
  };
  if (below) {
    score(TileQueries<true>{s.queries});
  } else {
    score(TileQueries<false>{s.queries});
  }
  const auto for_queries = [&](auto body) {
    for (int i = args.first_query; i < args.end_query; ++i) {
      const int begin = first_key(block, i, segment);
      const int end = end_key(block, i, segment);
      if (begin < end) body(i, s.scores[i - args.first_query], begin, end);
    }
  };
  for_queries([&](int i, float* row, int begin, int end) {
    const float scale = cap_scores(args, row, begin, end);
    tile_softmax<true>(row, begin, end, seen.begin, seen.end, scale, out.max + i, out.sum + i);
  });
  const auto accumulator = [&](int i) {
    return out.accumulator + static_cast<size_t>(i) * kv.value_stride;
  };
  if (!partly_seen_is_finite(args, first_kv_block, seen)) {
    configure_tiles(1, 1);
    for_queries([&](int i, float* row, int begin, int end) {
      add_values_of<false>({args, {begin, end, first_kv_block, keys.end_kv_block}}, row, s,
                           accumulator(i));
    });
  } else if (below) {
    add_values_of<true>({args, keys}, s.scores[0], s, accumulator(args.first_query));
  } else {
    add_values_of<false>({args, keys}, s.scores[0], s, accumulator(args.first_query));
  }
  release_tiles();
}

inline void attend_segment_amx(const AttentionArgs& args, const QueryBlock& block, int segment,
                               float* scratch, const SoftmaxState& out) {
  if (!fits_tiles(args.layout)) return attend_segment(args, block, segment, scratch, out);
  attend_on_tiles(args, block, segment, *reinterpret_cast<TileScratch*>(scratch), out);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
