// y = x W^T for some packed tiles of weights of eight bits and many rows of quantised activations,
// by products of 16 bits: the same exact sums as in gemm_groups-inl.h, and the same bits.
//
// Without vpdpbusd, 32 products of signed bytes need three instructions of the multiplying units;
// as words of 16 bits they need two. So the numbers of both sides are widened once for many
// products: some rows and a block of K for all tiles of a call, and two tiles for all of these
// rows.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

#ifdef PB_WORD_PRODUCTS

#include <algorithm>

#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/even_groups-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kFewestWordRows = 24;  // least number of rows for which this method is faster
constexpr int kWordChunk = 96;       // rows that are widened at once
constexpr int kWordGroups = 16;      // groups per block of K: weights stay in the first-level cache
constexpr int kWordTiles = 16;       // tiles per call
constexpr int kWordVectors = 2;      // tiles that share the reading of rows
constexpr int kWordRows = 6;         // rows per register block
constexpr int kWordsOfRow = kWordGroups * kGroupSize;

// The widened numbers and the parked sums of a thread.
struct WordScratch {
  alignas(64) float parked[kWordChunk * kWordTiles * kWidth];  // for each two tiles (rows, columns)
  alignas(64) int16_t rows[kWordChunk * kWordsOfRow];
  alignas(64) int16_t weights[kWordsOfRow * kWordVectors * kWidth];  // (pairs of k, columns, 2)
  alignas(64) float scales[kWordGroups * kWordVectors * kWidth];     // (groups, columns)
};

// Widens the weights of groups [first, first + n_groups) of a tile, which is vector v of kVectors.
template <typename Weights, int kVectors>
PB_INLINE void widen_weights(const uint8_t* tile, int first, int n_groups, int v, WordScratch* to) {
  constexpr int kPair = kVectors * 2 * kWidth;
  int16_t* words = to->weights + v * 2 * kWidth;
  float* scales = to->scales + v * kWidth;
  for (int g = first; g < first + n_groups; ++g) {
    const uint8_t* const w = group_at<Weights>(tile, g);
#pragma GCC unroll 8
    for (int j = 0; j < kGroupSize / 4; ++j) {
      const Quads quads = Weights::numbers(w + kFactorBytes<Weights>, j / 4, j % 4);
      store_words(words, words + kPair, quads, Weights::kZeroPoint);
      words += 2 * kPair;
    }
    store(scales, group_scale<Weights>(block_of_group<Weights>(tile, g), w, 0));
    scales += kVectors * kWidth;
  }
}

struct WordBlockArgs {
  const WordScratch* widened;
  int row;  // index among the widened rows
  int n_groups;
  const RowGroup* groups;  // first row, first group
  int64_t group_stride;
  BlockSums sums;
};

template <int kRows, int kVectors>
inline __attribute__((noinline)) void word_block(const WordBlockArgs& a) {
  constexpr int kColumns = kVectors * kWidth;
  Vec sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = begin_sum(a.sums, kColumns, r, v);
  }
  const int16_t* w = a.widened->weights;
  const int16_t* x = a.widened->rows + a.row * kWordsOfRow;
  const float* scales = a.widened->scales;
  const RowGroup* groups = a.groups;
  for (int g = 0; g < a.n_groups; ++g) {
    Ints whole[kRows][kVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) whole[r][v] = set1_int(0);
    }
#pragma GCC unroll 16
    for (int pair = 0; pair < kGroupSize / 2; ++pair) {
      Words column[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) column[v] = load_words(w + v * 2 * kWidth);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Words factor = broadcast_words(x + r * kWordsOfRow + 2 * pair);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          whole[r][v] = add_word_products(whole[r][v], column[v], factor);
        }
      }
      w += 2 * kColumns;
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vec row_scale = set1(groups[r * a.group_stride].scale);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const Vec scale = mul(load(scales + v * kWidth), row_scale);
        sum[r][v] = mul_add(to_float(whole[r][v]), scale, sum[r][v]);
      }
    }
    x += kGroupSize;
    scales += kColumns;
    ++groups;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) end_sum(a.sums, kColumns, r, v, sum[r][v]);
  }
}

// The product of some rows, at most kWordChunk, and a call's tiles.
template <typename Weights>
struct WordProduct {
  const GemmArgs& args;
  int tile_begin, tile_end;
  int row_begin, row_end;
  WordScratch* scratch;
  int n_groups = (args.n_in + kGroupSize - 1) / kGroupSize;

  static constexpr int kGroups = kGroupsInBlock<Weights>;
  size_t tile_bytes =
      static_cast<size_t>((n_groups + kGroups - 1) / kGroups) * kBlockBytes<Weights>;

  const uint8_t* weights(int tile) const {
    return static_cast<const uint8_t*>(args.weights) + tile * tile_bytes;
  }

  void widen_rows(int g, int n) const {
    for (int row = row_begin; row < row_end; ++row) {
      const auto* x = static_cast<const int8_t*>(args.x) + row * args.x_stride + g * kGroupSize;
      int16_t* words = scratch->rows + (row - row_begin) * kWordsOfRow;
      for (int i = 0; i < n * kGroupSize; i += kGroupSize) widen_bytes(words + i, x + i);
    }
  }

  // Multiplies kVectors tiles for n groups from g on.
  template <int kVectors>
  void multiply(int tile, int g, int n) const {
    for (int v = 0; v < kVectors; ++v) {
      widen_weights<Weights, kVectors>(weights(tile + v), g, n, v, scratch);
    }
    // Each block of rows prefetches a part of the next weights.
    const bool is_last = tile + kVectors >= tile_end;
    const uint8_t* next = is_last ? group_at<Weights>(weights(tile_begin), g + n)
                                  : group_at<Weights>(weights(tile + kVectors), g);
    const int n_parts = n_even_groups<kWordRows>(row_begin, row_end);
    int part = 0;
    float* parked = scratch->parked + (tile - tile_begin) * kWidth * kWordChunk;
    for_even_groups<kWordRows>(row_begin, row_end, [&]<int kRows>(int row) {
      for (int v = 0; v < kVectors; ++v) {
        prefetch_part(next + v * tile_bytes, n * kGroupBytes<Weights>, part, n_parts);
      }
      ++part;
      float* const sums_so_far = parked + (row - row_begin) * kVectors * kWidth;
      const BlockSums sums =
          sums_at(args, row, tile * kWidth, sums_so_far, g == 0, g + n == n_groups);
      const RowGroup* groups = args.groups + row * args.group_stride + g;
      word_block<kRows, kVectors>({scratch, row - row_begin, n, groups, args.group_stride, sums});
    });
  }

  void multiply() const {
    for (int g = 0; g < n_groups; g += kWordGroups) {
      const int n = std::min(kWordGroups, n_groups - g);
      widen_rows(g, n);
      int tile = tile_begin;
      for (; tile + kWordVectors <= tile_end; tile += kWordVectors) {
        multiply<kWordVectors>(tile, g, n);
      }
      for (; tile < tile_end; ++tile) multiply<1>(tile, g, n);
    }
  }
};

template <typename Weights>
inline void word_tiles(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                       int row_end, void* scratch) {
  if (row_end - row_begin < kFewestWordRows) {
    return each_tile<group_tile<GroupProduct<Weights>>>(args, tile_begin, tile_end, row_begin,
                                                        row_end, scratch);
  }
  for (int row = row_begin; row < row_end; row += kWordChunk) {
    const int end = std::min(row + kWordChunk, row_end);
    auto* words = static_cast<WordScratch*>(scratch);
    WordProduct<Weights>{args, tile_begin, tile_end, row, end, words}.multiply();
  }
}

static_assert(sizeof(WordScratch) >= kScratch<kGroupTileColumns>);

// The product of weights whose numbers have eight bits.
template <typename Weights>
constexpr ProductKernel kWholeByteKernel = {{kGroupTileColumns},
                                            RowFormat::kInt8,
                                            static_cast<int>(sizeof(WordScratch)),
                                            {kWordTiles, kWordTiles},
                                            word_tiles<Weights>};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET

#else

namespace pb::cpu::PB_CPU_TARGET {
namespace {

template <typename Weights>
constexpr ProductKernel kWholeByteKernel = kGroupKernel<GroupProduct<Weights>>;

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET

#endif
