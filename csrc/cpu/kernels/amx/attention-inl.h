// Attention on AMX, for keys and values in bf16 and whole tiles of head_dim. attention_bf16-inl.h
// describes the rounding and the masks.
//
// The queries of a call are rows of the same tiles, and rows are independent. Scores are products
// of 32 numbers of head_dim, in ascending order, independent of the other columns. Values are
// products of 32 keys, in ascending order. One or two queries that see the same keys are computed
// by the same products on vectors (amx/attention_small_batch-inl.h).
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/amx/attention_small_batch-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/attention/attention-inl.h"
#include "cpu/kernels/attention/attention_bf16-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kStripTiles = 4;  // tiles of columns of values that are added at once
constexpr int kRowBytes = sizeof(ScoreRow);
// Up to this number of queries, vectors are as fast as tiles.
constexpr int kSmallBatch = 2;
constexpr int kTilePairs = kTileRows * kChunk;  // bf16 numbers per tile

struct TileScratch {
  alignas(64) ScoreRow scores[kQueriesPerBlock];
  uint16_t queries[kQueriesPerBlock * kMostPairedDim];
  uint16_t values[2][kStripTiles][kTilePairs];  // two chunks in turn
  float small_batch[kSmallBatch * kMostPairedDim];
};
static_assert(sizeof(TileScratch) <= kAttentionScratch * sizeof(float));

// The scores of at most kTileRows queries or, with kBelow, of more queries in two tiles that share
// the loaded keys.
template <bool kBelow>
struct TileQueries {
  const uint16_t* numbers;  // (queries, head_dim)

  // Computes the scores of kTiles tiles of keys, 1 or 2, at the given addresses. Prefetches at the
  // distance `ahead` the values in the same KV blocks.
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

// Interleaves a chunk of values, kTiles * 16 columns from `column` on, into tiles: row i of a tile
// has the pairs of keys i and i + 16.
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

// Adds probabilities (rows, 32) times a chunk of values to the sums.
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

// out (rows, value_stride) = probabilities (rows, kScoreStride * 2) times values, for kTiles * 16
// columns from `column` on. The next chunk is interleaved while the previous one is multiplied.
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

// Adds the values of all columns, strip by strip.
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

// Computes attention on vectors for kQueries queries that all see the same keys.
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
    softmax_bf16<ChunkForm::kF32>(s.scores[q], keys.begin, keys.end, keys.begin, keys.end, scale,
                                  out.max + i, out.sum + i);
  }
  const TileRounding rounding;
  add_small_batch<kQueries>(
      ValueRows{args, keys}, s.scores[0], kScoreStride,
      out.accumulator + static_cast<size_t>(args.first_query) * kv.value_stride);
}

inline void attend_on_tiles(const AttentionArgs& args, const QueryBlock& block, int segment,
                            TileScratch& s, const SoftmaxState& out) {
  const KvLayout& kv = args.layout;
  const SeenKeys seen = seen_keys(block, args.first_query, args.end_query, segment);
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
  round_queries(args, block, kv.head_dim, s.queries);
  const auto score = [&](auto queries) {
    score_keys(args, first_kv_block, seen.begin, seen.end, queries, s.scores[0]);
  };
  if (below) {
    score(TileQueries<true>{s.queries});
  } else {
    score(TileQueries<false>{s.queries});
  }
  attend_scored<ChunkForm::kHalvesPaired>(
      args, block, segment, seen, keys, s.scores, out,
      [&](const ValueRows& values, int first, int n_rows, float* accumulator) {
        if (n_rows < n) configure_tiles(1, 1);
        if (n_rows > kTileRows) {
          add_values_of<true>(values, s.scores[first], s, accumulator);
        } else {
          add_values_of<false>(values, s.scores[first], s, accumulator);
        }
      });
  release_tiles();
}

inline void attend_segment_amx(const AttentionArgs& args, const QueryBlock& block, int segment,
                               float* scratch, const SoftmaxState& out) {
  if (!fits_pairs(args.layout)) return attend_segment(args, block, segment, scratch, out);
  attend_on_tiles(args, block, segment, *reinterpret_cast<TileScratch*>(scratch), out);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
