// y = x W^T for weights whose whole numbers are multiplied (K types, MXFP4, Q5_0, IQ4_NL, int4 with
// zero points) on AMX, for some packed weight tiles and some quantised rows.
//
// The products of a group and their sum are exact whole numbers: tdpbssd computes the same sums as
// vpdpbusd. The float operations that add them to an output are those of gemm_groups-inl.h and
// gemm_super_blocks-inl.h, in the same order. So a row's bits are equal to those of the method for
// few rows, and the number of rows may decide between both methods.
//
// A phase is some groups of K of a weight tile: they are expanded to bytes once, then every 16 rows
// are multiplied by them, and vectors add their sums, which are still in the cache, to the outputs.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/amx/expand_bytes-inl.h"
#include "cpu/kernels/amx/tiles-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// The rows of a pass, and their bytes, which stay in the second-level cache while weight tiles
// stream through it.
constexpr int kBytePassRows = 512;
constexpr int kBytePassBytes = 640 << 10;
constexpr int kByteTiles = 16;       // tiles whose sums are parked between parts of K
constexpr int kSumsBytes = 8 << 10;  // sums of a phase, which stay in the first-level cache
constexpr int kRowsAtOnce = 4;       // rows whose sums are added together
constexpr int kSumsOfTile = kTileRows * kWidth;

template <typename Weights>
constexpr int kPhaseGroups = kSumsBytes / (2 * Weights::kProducts * kSumsOfTile * 4);

// The scratch consists of parked sums, the sums of a phase, and its weights.
constexpr int kByteParkedFloats = kByteTiles * kBytePassRows * kGroupTileColumns;
template <typename Weights>
constexpr int kByteScratch = kByteParkedFloats * 4 + kSumsBytes +
                             kPhaseGroups<Weights> * sizeof(ByteGroup<Weights::kProducts>);

// Computes sums kSums and kSums + 1 = 16 rows at x times two neighbouring tiles of bytes.
template <typename Weights, int kSums, int kX>
PB_INLINE void multiply_two(const int8_t* x, int64_t x_stride,
                            const ByteGroup<Weights::kProducts>& w, int first) {
  tile_load<kX>(x, x_stride);
  tile_zero<kSums>();
  tile_load<6>(w.tile(first), kLineBytes);
  tile_byte_product<kSums, kX, 6>();
  tile_zero<kSums + 1>();
  tile_load<7>(w.tile(first + 1), kLineBytes);
  tile_byte_product<kSums + 1, kX, 7>();
  if constexpr (Weights::kHasRest) {
    if (w.has_rest[0]) {
      tile_load<6>(w.rest[0], 0);
      tile_byte_product<kSums, kX, 6>();
    }
    if (w.has_rest[1]) {
      tile_load<7>(w.rest[1], 0);
      tile_byte_product<kSums + 1, kX, 7>();
    }
  }
}

template <int kSums>
PB_INLINE void store_two(int32_t* sums) {
  tile_store<kSums>(sums, kLineBytes);
  tile_store<kSums + 1>(sums + kSumsOfTile, kLineBytes);
}

// Computes sums (groups, 2, kProducts, 16 rows, 16) of the groups of a phase, for 16 rows at x.
// They are stored while the next ones are computed.
template <typename Weights>
inline __attribute__((noinline)) void multiply_phase(const int8_t* x, int64_t x_stride, int groups,
                                                     const ByteGroup<Weights::kProducts>* w,
                                                     int32_t* sums) {
  constexpr int kProducts = Weights::kProducts;
  const auto multiply = [&]<int kSums, int kX>(int i) __attribute__((always_inline)) {
    const int g = i / kProducts;
    multiply_two<Weights, kSums, kX>(x + g * kGroupSize, x_stride, w[g], i % kProducts * 2);
  };
  const int steps = groups * kProducts;
  multiply.template operator()<0, 4>(0);
  int i = 1;
  for (; i + 1 < steps; i += 2, sums += 4 * kSumsOfTile) {
    multiply.template operator()<2, 5>(i);
    store_two<0>(sums);
    multiply.template operator()<0, 4>(i + 1);
    store_two<2>(sums + 2 * kSumsOfTile);
  }
  if (i < steps) multiply.template operator()<2, 5>(i);
  store_two<0>(sums);
  if (i < steps) store_two<2>(sums + 2 * kSumsOfTile);
}

// The rows of a phase, at most 16, or some of them.
struct PhaseRows {
  const int8_t* x;  // first row, first group
  int64_t x_stride;
  const RowGroup* groups;  // first row, first group
  int64_t group_stride;
  BlockSums out;

  PB_INLINE PhaseRows from(int r) const {
    PhaseRows rows = *this;
    rows.x += r * x_stride;
    rows.groups += r * group_stride;
    rows.out.parked += r * kGroupTileColumns;
    rows.out.y += r * out.y_stride;
    return rows;
  }
};

// Prefetches the data that a phase of `groups` reads for the row 16 below row r.
PB_INLINE void prefetch_below(const PhaseRows& rows, int r, int groups) {
  const int8_t* x = rows.x + (r + kTileRows) * rows.x_stride;
  for (int i = 0; i < groups * kGroupSize; i += kLineBytes) __builtin_prefetch(x + i, 0, 3);
  const auto* of_row =
      reinterpret_cast<const char*>(rows.groups + (r + kTileRows) * rows.group_stride);
  for (int i = 0; i < groups * static_cast<int>(sizeof(RowGroup)); i += kLineBytes) {
    __builtin_prefetch(of_row + i, 0, 3);
  }
  const float* parked = rows.out.parked + (r + kTileRows) * kGroupTileColumns;
  __builtin_prefetch(parked, 0, 3);
  __builtin_prefetch(parked + kWidth, 0, 3);
}

// Adds a phase's sums of kRows rows to their outputs; `sums` points to those of the first row.
template <typename Weights, int kRows>
PB_INLINE void add_rows(const PhaseRows& rows, int groups, const ByteGroup<Weights::kProducts>* w,
                        const int32_t* sums) {
  constexpr int kProducts = Weights::kProducts;
  Vec sum[kRows][2];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    prefetch_below(rows, r, groups);
    sum[r][0] = begin_sum(rows.out, kGroupTileColumns, r, 0);
    sum[r][1] = begin_sum(rows.out, kGroupTileColumns, r, 1);
  }
  const RowGroup* of_rows = rows.groups;
  for (int g = 0; g < groups; ++g, ++w, ++of_rows, sums += 2 * kProducts * kSumsOfTile) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Vec scale = load(w->scale + v * kWidth);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& row = of_rows[r * rows.group_stride];
        const int32_t* at = sums + v * kProducts * kSumsOfTile + r * kWidth;
        __m512i whole = _mm512_load_si512(at);
        if constexpr (kProducts == 2) {
          whole = _mm512_add_epi32(_mm512_slli_epi32(whole, Weights::kShift),
                                   _mm512_load_si512(at + kSumsOfTile));
        }
        sum[r][v] = mul_add(to_float(whole), mul(scale, set1(row.scale)), sum[r][v]);
        if constexpr (Weights::kHasMin) {
          sum[r][v] = neg_mul_add(load(w->min + v * kWidth), set1(row.total), sum[r][v]);
        }
        if constexpr (Weights::kHasHalfMins) {
          const Ints mins = pair_products(_mm512_load_si512(w->rest[v]), row.halves);
          sum[r][v] = neg_mul_add(to_float(mins), mul(load(w->min + v * kWidth), set1(row.scale)),
                                  sum[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    end_sum(rows.out, kGroupTileColumns, r, 0, sum[r][0]);
    end_sum(rows.out, kGroupTileColumns, r, 1, sum[r][1]);
  }
}

// Adds a phase's sums of n rows, at most 16.
template <typename Weights>
inline __attribute__((noinline)) void add_phase(const PhaseRows& rows, int n, int groups,
                                                const ByteGroup<Weights::kProducts>* w,
                                                const int32_t* sums) {
  int r = 0;
  for (; r + kRowsAtOnce <= n; r += kRowsAtOnce) {
    add_rows<Weights, kRowsAtOnce>(rows.from(r), groups, w, sums + r * kWidth);
  }
  for (; r < n; ++r) add_rows<Weights, 1>(rows.from(r), groups, w, sums + r * kWidth);
}

// Configures the tiles: sums 0 to 3 and x 4 and 5 have `rows` rows; 6 and 7 are weights.
PB_INLINE void configure_bytes(int rows) {
  const auto n = static_cast<uint8_t>(rows);
  configure_tiles(TileShapes{.row_bytes = {64, 64, 64, 64, kGroupSize, kGroupSize, 64, 64},
                             .rows = {n, n, n, n, n, n, kQuadsOfGroup, kQuadsOfGroup}});
}

// Groups [group, end_group) of K, for some rows, of weight tiles [tile_begin, tile_end).
struct BytePass {
  int tile_begin, tile_end;
  int row, rows;
  int group, end_group;
};

template <typename Weights>
inline void multiply_byte_pass(const GemmArgs& args, const BytePass& pass, float* parked) {
  using Product = typename Weights::Product;
  const int n_groups = (args.n_in + kGroupSize - 1) / kGroupSize;
  const int64_t tile_bytes =
      static_cast<int64_t>((args.n_in + Product::kLength - 1) / Product::kLength) * Product::kBytes;
  auto* sums = reinterpret_cast<int32_t*>(parked + kByteParkedFloats);
  auto* groups = reinterpret_cast<ByteGroup<Weights::kProducts>*>(sums + kSumsBytes / 4);
  const auto* x = static_cast<const int8_t*>(args.x) + pass.row * args.x_stride;
  const RowGroup* rows = args.groups + pass.row * args.group_stride;
  const int n_rest = pass.rows % kTileRows;
  for (int tile = pass.tile_begin; tile < pass.tile_end; ++tile) {
    const uint8_t* w = static_cast<const uint8_t*>(args.weights) + tile * tile_bytes;
    const int column = tile * kGroupTileColumns;
    float* of_tile =
        parked + static_cast<int64_t>(tile - pass.tile_begin) * kBytePassRows * kGroupTileColumns;
    for (int g = pass.group; g < pass.end_group; g += kPhaseGroups<Weights>) {
      const int left = pass.end_group - g;
      const int n = left < kPhaseGroups<Weights> ? left : kPhaseGroups<Weights>;
      for (int i = 0; i < n; ++i) {
        const int64_t bytes = Product::kBytes * int64_t{kGroupSize} / Product::kLength;
        const uint8_t* next = w + (g + i + kPhaseGroups<Weights>)*bytes;
        for (int line = 0; line < bytes; line += kLineBytes) __builtin_prefetch(next + line, 0, 2);
        Weights::expand(w, g + i, groups[i]);
      }
      for (int row = 0; row < pass.rows; row += kTileRows) {
        const int some = pass.rows - row < kTileRows ? n_rest : kTileRows;
        if (row == 0 || some < kTileRows) configure_bytes(some);
        const PhaseRows block{
            x + row * args.x_stride + g * kGroupSize,
            args.x_stride,
            rows + row * args.group_stride + g,
            args.group_stride,
            {of_tile + row * kGroupTileColumns, g == 0, g + n == n_groups,
             args.y + (pass.row + row) * args.y_stride + column, args.y_stride,
             args.bias == nullptr ? nullptr : args.bias + column, args.n_out - column, args.add}};
        multiply_phase<Weights>(block.x, args.x_stride, n, groups, sums);
        add_phase<Weights>(block, some, n, groups, sums);
      }
    }
  }
}

// Multiplies rows [row_begin, row_end) by weight tiles [tile_begin, tile_end), at most kByteTiles.
template <typename Weights>
inline void byte_tiles(const GemmArgs& args, int tile_begin, int tile_end, int row_begin,
                       int row_end, void* scratch) {
  if (row_end - row_begin < Weights::kLeastRows) {
    each_tile<group_tile<typename Weights::Product>>(args, tile_begin, tile_end, row_begin, row_end,
                                                     scratch);
    return;
  }
  constexpr int kBytesOfGroup = kGroupSize + static_cast<int>(sizeof(RowGroup));
  constexpr int kPhase = kPhaseGroups<Weights>;
  const int n_groups = (args.n_in + kGroupSize - 1) / kGroupSize;
  const int n_passes = (row_end - row_begin + kBytePassRows - 1) / kBytePassRows;
  const int even_rows = (row_end - row_begin + n_passes - 1) / n_passes;
  const int pass_rows = (even_rows + kTileRows - 1) / kTileRows * kTileRows;
  for (int row = row_begin; row < row_end; row += pass_rows) {
    const int rows = row_end - row < pass_rows ? row_end - row : pass_rows;
    const int most = kBytePassBytes / (rows * kBytesOfGroup);
    const int part = most < kPhase ? kPhase : most / kPhase * kPhase;
    for (int group = 0; group < n_groups; group += part) {
      const int end_group = group + part < n_groups ? group + part : n_groups;
      multiply_byte_pass<Weights>(args, {tile_begin, tile_end, row, rows, group, end_group},
                                  static_cast<float*>(scratch));
    }
  }
  release_tiles();
}

template <typename Weights>
constexpr ProductKernel kByteProduct = {{kGroupTileColumns},
                                        RowFormat::kInt8,
                                        kByteScratch<Weights>,
                                        {kByteTiles, kByteTiles},
                                        byte_tiles<Weights>};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
