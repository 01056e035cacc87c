// y = x W^T for one packed tile of quantised weights and some rows of quantised activations.
//
// In a group of 32 along K the products of whole numbers are summed exactly. A group adds
// fma(float(sum), weight scale * activation scale, output) to an output, in order of groups.
// Weights are stored with a zero point added, so that they are the unsigned operand of vpdpbusd:
// the exact sum starts with a term, computed from the sum of the row's whole numbers, that cancels
// the zero point. The zero point is a constant of the format, or a byte for each column and group.
// cpu/weights/group_tiles.h describes the tiles.
#pragma once

#include <bit>
#include <type_traits>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/even_groups-inl.h"
#ifdef __ARM_FEATURE_MATMUL_INT8
#include "cpu/kernels/gemm/pair_sums_neon-inl.h"
#endif
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kGroupTileVectors = kRegisters == 32 ? 2 : 1;
constexpr int kGroupTileColumns = kGroupTileVectors * kWidth;
// The bytes of a tile per block of K, if several blocks of rows read it.
constexpr int kGroupBlock = 65536;
constexpr int kQuadBytes = 4 * kGroupTileColumns;
// The steps of a half of a group, with four numbers of k each.
constexpr int kStepsOfHalf = kGroupSize / 2 / 4;

// Codes of kBits in the layout of cpu/weights/group_tiles.h. numbers() returns, for the columns of
// one vector, the codes of four numbers of k from 16 half + 4 j on; w points to the codes of the
// group.
template <int kBits>
struct Codes {
  static constexpr int kRowsOfQuads = kBits;
  // The steps whose products a sum of 16 bits can hold; a step adds two products of a code and 128.
  static constexpr int kNarrowSteps = kBits <= 4 ? 8 : kBits == 5 ? 4 : 2;

  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    if constexpr (kBits == 2) {
      return masked_shift(load_quads(w + half * kQuadBytes), -2 * j, 0x03);
    } else if constexpr (kBits == 4) {
      const Quads both = load_quads(w + j * kQuadBytes);
      return half == 0 ? low_nibbles(both) : high_nibbles(both);
    } else if constexpr (kBits == 6) {
      const Quads high = load_quads(w + half * kQuadBytes);
      return or_quads(Codes<4>::numbers(w + 2 * kQuadBytes, half, j),
                      masked_shift(high, 4 - 2 * j, 0x30));
    } else {  // one bit above 2 or 4 bits
      static_assert(kBits == 3 || kBits == 5);
      constexpr int kLow = kBits - 1;
      return or_quads(Codes<kLow>::numbers(w + kQuadBytes, half, j),
                      masked_shift(load_quads(w), half == 0 ? kLow - j : kLow - 4 - j, 1 << kLow));
    }
  }
};

// The access to the numbers of a format, specialised for each format. targets/formats-inl.h derives
// the product from it.
template <typename Format>
struct WeightsOf;

// The f16 scales of a group.
struct F16Scales {
  static constexpr int kScaleBytes = kGroupTileColumns * 2;
  static PB_INLINE Vec scale(const uint8_t* w, int v) {
    return load_f16(reinterpret_cast<const uint16_t*>(w) + v * kWidth);
  }
};

struct Int8Weights : F16Scales {
  static constexpr int16_t kZeroPoint = 128;
  static constexpr int kRowsOfQuads = 8;
  // The rows of a register block, whose whole sums and float sums fill the registers.
  static constexpr int kMaxRows = kByteProducts || kSignedBytes ? 6 : 4;
  using Sum = WholeByteSums;
  // Returns the bytes of a vector's columns for four numbers of k, from number 16 half + 4 j of the
  // group on.
  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    return load_quads(w + (half * kRowsOfQuads / 2 + j) * 4 * kGroupTileColumns);
  }
  // sums[r][v] += fours of row j times those of each row of x, which starts at the group.
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Sum (&sums)[kRows][kGroupTileVectors]) {
    Bytes column[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      column[v] = bytes_of(load_quads(w + v * 4 * kWidth));
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const QuadFactor f = quad_factor(x + r * stride + 4 * j);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        sums[r][v] = add_products(sums[r][v], column[v], f);
      }
    }
  }
};

struct Int4Weights : F16Scales {
  static constexpr int16_t kZeroPoint = 8;
  static constexpr int kRowsOfQuads = 4;
  static constexpr int kMaxRows = 6;
  using Sum = ByteSums;
  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    const Quads both = load_quads(w + j * 4 * kGroupTileColumns);
    return half == 0 ? low_nibbles(both) : high_nibbles(both);
  }
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Sum (&sums)[kRows][kGroupTileVectors]) {
    Quads low[kGroupTileVectors], high[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      const Quads both = load_quads(w + v * 4 * kWidth);
      low[v] = low_nibbles(both);
      high[v] = high_nibbles(both);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const QuadFactor f = quad_factor(x + r * stride + 4 * j);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        sums[r][v] = add_products(sums[r][v], low[v], f);
      }
      const QuadFactor g = quad_factor(x + r * stride + kGroupSize / 2 + 4 * j);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        sums[r][v] = add_products(sums[r][v], high[v], g);
      }
    }
  }
};

struct Int4ZpWeights : Int4Weights {
  static constexpr int16_t kZeroPoint = 0;  // the zero points are in the tile
};

template <>
struct WeightsOf<Int8> : Int8Weights {};
template <>
struct WeightsOf<Int4> : Int4Weights {};
template <>
struct WeightsOf<Int4Zp> : Int4ZpWeights {};

// True if the zero points of columns follow their scales.
template <typename Weights>
constexpr bool kStoresZeros = Weights::kZeroPoint == 0;
template <typename Weights>
constexpr int kFactorBytes = Weights::kScaleBytes + (kStoresZeros<Weights> ? kGroupTileColumns : 0);
// The steps of a group. Rows of fours beyond them contain data that all steps read.
template <typename Weights>
constexpr int kGroupSteps = Weights::kRowsOfQuads;
template <typename Weights>
constexpr int kGroupBytes = kFactorBytes<Weights> + Weights::kRowsOfQuads * 4 * kGroupTileColumns;

// Weights whose blocks have several groups. A block starts with numbers that its groups share: the
// weights have kSharedBytes and kGroupsOfBlock, and scale() takes the addresses of both the block
// and the group.
template <typename Weights>
concept SharesScales = requires { Weights::kSharedBytes; };
template <typename Weights>
constexpr int kSharedOfBlock = 0;
template <SharesScales Weights>
constexpr int kSharedOfBlock<Weights> = Weights::kSharedBytes;
template <typename Weights>
constexpr int kGroupsInBlock = 1;
template <SharesScales Weights>
constexpr int kGroupsInBlock<Weights> = kGroupsOfSuperBlock;
template <typename Weights>
constexpr int kBlockBytes =
    kSharedOfBlock<Weights> + kGroupsInBlock<Weights> * kGroupBytes<Weights>;

// Returns the scales of a group in a block for vector v of the columns; w points to the group.
template <typename Weights>
PB_INLINE Vec group_scale(const uint8_t* block, const uint8_t* w, int v) {
  if constexpr (SharesScales<Weights>) {
    return Weights::scale(block, w, v);
  } else {
    return Weights::scale(w, v);
  }
}

// Return the block that contains group g of a tile, and the group itself.
template <typename Weights>
PB_INLINE const uint8_t* block_of_group(const uint8_t* tile, int g) {
  return tile + static_cast<size_t>(g / kGroupsInBlock<Weights>) * kBlockBytes<Weights>;
}
template <typename Weights>
PB_INLINE const uint8_t* group_at(const uint8_t* tile, int g) {
  return block_of_group<Weights>(tile, g) + kSharedOfBlock<Weights> +
         g % kGroupsInBlock<Weights> * kGroupBytes<Weights>;
}

// True if the zero point is removed from the numbers before they are multiplied.
template <typename Weights>
constexpr bool kHasZeroTaken = kSignedBytes && std::is_same_v<typename Weights::Sum, WholeByteSums>;

// Returns the term that cancels the contribution of zero points, those of vector v of the group at
// w, to the products with a row's group.
template <typename Weights>
PB_INLINE Ints zero_point_products(const uint8_t* w, int v, const RowGroup& group) {
  if constexpr (kStoresZeros<Weights>) {
    const Ints minus = sub_ints(set1_int(0), load_unsigned(w + Weights::kScaleBytes + v * kWidth));
    return pair_products(pair_up(minus, minus, 0), group.halves);
  } else if constexpr (kRowZeroPoint % Weights::kZeroPoint == 0) {
    constexpr unsigned kRatio = kRowZeroPoint / Weights::kZeroPoint;
    return shift_right<std::countr_zero(kRatio)>(set1_int(group.zero_products));
  } else {
    return pair_products(set1_pair(-Weights::kZeroPoint, -Weights::kZeroPoint), group.halves);
  }
}

struct GroupBlockArgs {
  const uint8_t* w;  // first group, or block of groups, of the block of K
  const int8_t* x;   // first row, first group
  int64_t x_stride;
  const RowGroup* groups;  // first row, first group
  int64_t group_stride;
  int n_groups;
  bool prefetches;
  ptrdiff_t ahead;  // distance for prefetch_half; 0: none
  BlockSums sums;
};

template <typename Weights, int kRows>
inline __attribute__((noinline)) void group_block(const GroupBlockArgs& a) {
  Vec sum[kRows][kGroupTileVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      sum[r][v] = begin_sum(a.sums, kGroupTileColumns, r, v);
    }
  }
  const uint8_t* w = a.w;
  const int8_t* x = a.x;
  const RowGroup* groups = a.groups;
  for (int b = 0; b < a.n_groups; ++b) {
    const uint8_t* const block = w;
    w += kSharedOfBlock<Weights>;
#pragma GCC unroll 1
    for (int g = 0; g < kGroupsInBlock<Weights>; ++g) {
      if (kRows > 1 && a.prefetches) prefetch(w, kGroupBytes<Weights>);
      if (kRows > 1 && a.ahead != 0) prefetch_half<kGroupBytes<Weights>>(w, a.ahead);
      typename Weights::Sum whole[kRows][kGroupTileVectors];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kGroupTileVectors; ++v) {
          whole[r][v] = typename Weights::Sum();
          if constexpr (!kNarrowSums && !kHasZeroTaken<Weights>) {
            whole[r][v] = zero_point_products<Weights>(w, v, groups[r * a.group_stride]);
          }
        }
      }
      const auto step = [&](int j) __attribute__((always_inline)) {
        if (kRows == 1 && a.prefetches) {
          prefetch_in_step<kGroupBytes<Weights>, kGroupSteps<Weights>>(w, j);
        }
        Weights::step(w + kFactorBytes<Weights> + j * 4 * kGroupTileColumns, j, x, a.x_stride,
                      whole);
      };
      // Memory-bound: with short code the CPU runs further ahead.
      if constexpr (kRows == 1 && kNarrowSums) {
#pragma GCC unroll 2
        for (int j = 0; j < kGroupSteps<Weights>; ++j) step(j);
#ifdef __ARM_FEATURE_MATMUL_INT8
      } else if constexpr (kRows > 1 && HasNumbers<Weights>) {
        // The last bytes of the group.
        constexpr int kNumbers = Weights::kRowsOfQuads * 4 * kGroupTileColumns;
        PairSums pairs(whole);
        pairs.template add<Weights>(w + kGroupBytes<Weights> - kNumbers, 0, x, a.x_stride);
        pairs.template add<Weights>(w + kGroupBytes<Weights> - kNumbers, 1, x, a.x_stride);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
          for (int v = 0; v < kGroupTileVectors; ++v) whole[r][v] = pairs.of(r, v);
        }
#endif
      } else {
#pragma GCC unroll 8
        for (int j = 0; j < kGroupSteps<Weights>; ++j) step(j);
      }
      Vec scale[kGroupTileVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        scale[v] = group_scale<Weights>(block, w, v);
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& group = groups[r * a.group_stride];
        const Vec row_scale = set1(group.scale);
#pragma GCC unroll 2
        for (int v = 0; v < kGroupTileVectors; ++v) {
          Ints products = total(whole[r][v]);
          if constexpr (kNarrowSums && !kHasZeroTaken<Weights>)
            products = add_ints(products, zero_point_products<Weights>(w, v, group));
          sum[r][v] = mul_add(to_float(products), mul(scale[v], row_scale), sum[r][v]);
        }
      }
      w += kGroupBytes<Weights>;
      x += kGroupSize;
      ++groups;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      end_sum(a.sums, kGroupTileColumns, r, v, sum[r][v]);
    }
  }
}

// The product of weights in groups; blocks of K are groups, or blocks of groups.
template <typename Weights>
struct GroupProduct {
  // Numbers of k per block of K.
  static constexpr int kLength = kGroupsInBlock<Weights> * kGroupSize;
  static constexpr int kBytes = kBlockBytes<Weights>;
  static constexpr int kMaxRows = Weights::kMaxRows;
  // True if computing `rows` rows is memory-bound: any row count for int8 on 512-bit vectors, up to
  // 2 rows on narrower ones (which need twice the instructions), else 1.
  static constexpr bool is_quick(int rows) {
    return rows == 1 || (std::is_base_of_v<Int8Weights, Weights> && (kWidth == 16 || rows == 2));
  }
  template <int kRows>
  static PB_INLINE void block(const GroupBlockArgs& a) {
    group_block<Weights, kRows>(a);
  }
};

template <typename Product>
inline void group_tile(const GemmArgs& args, int tile, int row_begin, int row_end, void* scratch) {
  constexpr int kLength = Product::kLength;
  const int n_blocks = (args.n_in + kLength - 1) / kLength;
  const auto* w = static_cast<const uint8_t*>(args.weights) +
                  static_cast<size_t>(tile) * n_blocks * Product::kBytes;
  const auto* x = static_cast<const int8_t*>(args.x);
  const auto k_block = [](int) { return kGroupBlock / Product::kBytes; };
  const auto multiply = [&](const RowBlock& at) {
    const GroupBlockArgs block{w + static_cast<size_t>(at.k) * Product::kBytes,
                               x + at.row * args.x_stride + at.k * kLength,
                               args.x_stride,
                               args.groups + at.row * args.group_stride +
                                   static_cast<int64_t>(at.k) * (kLength / kGroupSize),
                               args.group_stride,
                               at.k_end - at.k,
                               at.fresh && (args.prefetch_quick || !Product::is_quick(at.rows)),
                               at.distance_ahead<Product::kBytes>(at.k_end - at.k),
                               at.sums};
    with_count<Product::kMaxRows>(at.rows,
                                  [&]<int kRows>() { Product::template block<kRows>(block); });
  };
  for_blocks<Product::kMaxRows, kGroupTileColumns>(args, tile, row_begin, row_end, n_blocks,
                                                   k_block, static_cast<float*>(scratch), multiply);
}

template <typename Product>
constexpr ProductKernel kGroupKernel = {{kGroupTileColumns},
                                        RowFormat::kInt8,
                                        kScratch<kGroupTileColumns>,
                                        kTilesPerCall,
                                        each_tile<group_tile<Product>>};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
