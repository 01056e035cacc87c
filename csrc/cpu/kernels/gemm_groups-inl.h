// y = x W^T for one packed tile of quantised weights and some rows of quantised activations.
//
// In a group of 32 along K the products of whole numbers are summed exactly; what a group adds to
// an output is fma(float(sum), weight scale * activation scale, output), group after group. Weights
// lie a zero point above their value, so that they are the unsigned operand of vpdpbusd: the row's
// correction, where the exact sum starts, takes that back. AVX2 has no such instruction and takes
// the zero point of bytes off first.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/gemm_rows-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kGroupTileVectors = kRegisters == 32 ? 2 : 1;
constexpr int kGroupTileColumns = kGroupTileVectors * kWidth;
// Rows of a register block: their whole sums and their float sums fill the registers, but for what
// the byte dot product needs where it is several instructions.
constexpr int kMaxGroupRows = kRegisters == 32 && kByteProducts ? 6 : 4;
constexpr int kUnroll =
    kByteProducts ? 8 : 1;  // rows of quads; what is several instructions spills
constexpr int kScaleBytes = kGroupTileColumns * 2;
// Bytes of a tile that a block of K takes where several blocks of rows pass over it.
constexpr int kGroupBlock = 65536;

struct Int8Weights {
  static constexpr int kZeroPoint = kByteZeroPoint;  // that is still in the products
  static constexpr int kRowsOfQuads = 8;
  // sums[r][v] += quads of row j times those of each row of x, which starts at the group.
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Ints (&sums)[kRows][kGroupTileVectors]) {
    WeightBytes column[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) column[v] = load_weight_bytes(w + v * 4 * kWidth);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const WeightByteFactor f = weight_byte_factor(x + r * stride + 4 * j);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) sums[r][v] = dot(sums[r][v], column[v], f);
    }
  }
};

struct Int4Weights {
  static constexpr int kZeroPoint = 8;
  static constexpr int kRowsOfQuads = 4;
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Ints (&sums)[kRows][kGroupTileVectors]) {
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
      for (int v = 0; v < kGroupTileVectors; ++v) sums[r][v] = dot(sums[r][v], low[v], f);
      const QuadFactor g = quad_factor(x + r * stride + kGroupSize / 2 + 4 * j);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) sums[r][v] = dot(sums[r][v], high[v], g);
    }
  }
};

template <typename Weights>
constexpr int kGroupBytes = kScaleBytes + Weights::kRowsOfQuads * 4 * kGroupTileColumns;

struct GroupBlockArgs {
  const uint8_t* w;  // first group of the block
  const int8_t* x;   // first row, first group
  int64_t x_stride;
  const RowGroup* groups;  // first row, first group
  int64_t group_stride;
  int n_groups;
  bool fresh;  // the first rows that pass over these weights: they come from memory
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
  for (int g = 0; g < a.n_groups; ++g) {
    if (a.fresh) prefetch(w, kGroupBytes<Weights>);
    Ints whole[kRows][kGroupTileVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        whole[r][v] =
            set1_int(Weights::kZeroPoint == 0 ? 0 : groups[r * a.group_stride].correction);
      }
    }
#pragma GCC unroll kUnroll
    for (int j = 0; j < Weights::kRowsOfQuads; ++j) {
      Weights::step(w + kScaleBytes + j * 4 * kGroupTileColumns, j, x, a.x_stride, whole);
    }
    Vec scale[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      scale[v] = load_f16(reinterpret_cast<const uint16_t*>(w) + v * kWidth);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vec row_scale = set1(groups[r * a.group_stride].scale);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        sum[r][v] = mul_add(to_float(whole[r][v]), mul(scale[v], row_scale), sum[r][v]);
      }
    }
    w += kGroupBytes<Weights>;
    x += kGroupSize;
    ++groups;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      end_sum(a.sums, kGroupTileColumns, r, v, sum[r][v]);
    }
  }
}

// group_block of 1 <= rows <= kRows.
template <typename Weights, int kRows>
PB_INLINE void group_rows(const GroupBlockArgs& block, int rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return group_rows<Weights, kRows - 1>(block, rows);
  }
  group_block<Weights, kRows>(block);
}

template <typename Weights>
inline void group_tile(const GemmArgs& args, int tile, int row_begin, int row_end, void* scratch) {
  const int n_groups = (args.n_in + kGroupSize - 1) / kGroupSize;
  const auto* w = static_cast<const uint8_t*>(args.weights) +
                  static_cast<size_t>(tile) * n_groups * kGroupBytes<Weights>;
  const auto* x = static_cast<const int8_t*>(args.x);
  const auto k_block = [](int) { return kGroupBlock / kGroupBytes<Weights>; };
  for_blocks<kMaxGroupRows, kGroupTileColumns>(
      args, tile, row_begin, row_end, n_groups, k_block, static_cast<float*>(scratch),
      [&](int row, int rows, int g, int g_end, const BlockSums& sums) {
        const GroupBlockArgs block{w + static_cast<size_t>(g) * kGroupBytes<Weights>,
                                   x + row * args.x_stride + g * kGroupSize,
                                   args.x_stride,
                                   args.groups + row * args.group_stride + g,
                                   args.group_stride,
                                   g_end - g,
                                   row == row_begin,
                                   sums};
        group_rows<Weights, kMaxGroupRows>(block, rows);
      });
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
