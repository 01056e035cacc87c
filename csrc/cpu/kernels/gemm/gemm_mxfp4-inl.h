// y = x W^T for one packed tile of MXFP4 weights (cpu/weights/pack.h) and some rows of quantised
// activations, as in gemm_groups-inl.h. A look-up replaces each code by twice its number, which is
// whole and multiplied as a byte; the scale is half the group's power of two. Both are exact.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Separate sums of the low nibbles' products and of the high ones', because a common sum of bytes
// up to 24 would not fit 16 bits.
struct SumsOfHalves {
  ByteSums low = no_sums(), high = no_sums();
};
PB_INLINE Ints total(const SumsOfHalves& sum) { return add_ints(total(sum.low), total(sum.high)); }

template <bool kNarrow>
struct SumsOfNibbles {
  using Type = SumsOfHalves;
};
template <>
struct SumsOfNibbles<false> {
  using Type = ByteSums;
};

template <typename Sum>
PB_INLINE Sum& low_of(Sum& sum) {
  return sum;
}
template <typename Sum>
PB_INLINE Sum& high_of(Sum& sum) {
  return sum;
}
PB_INLINE ByteSums& low_of(SumsOfHalves& sum) { return sum.low; }
PB_INLINE ByteSums& high_of(SumsOfHalves& sum) { return sum.high; }

// sums[r][v] += the numbers of k from 4 j on in the low nibbles' half and in the high nibbles'
// half, times those of each row of x, which starts at the group.
template <typename Column, typename Sum, int kRows>
PB_INLINE void add_halves(const Column (&low)[kGroupTileVectors],
                          const Column (&high)[kGroupTileVectors], int j, const int8_t* x,
                          int64_t stride, Sum (&sums)[kRows][kGroupTileVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const QuadFactor f = quad_factor(x + r * stride + 4 * j);
    const QuadFactor g = quad_factor(x + r * stride + kGroupSize / 2 + 4 * j);
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      low_of(sums[r][v]) = add_products(low_of(sums[r][v]), low[v], f);
      high_of(sums[r][v]) = add_products(high_of(sums[r][v]), high[v], g);
    }
  }
}

// Twice the numbers of the codes (kMxfp4Doubles) plus the zero point.
alignas(16) constexpr uint8_t kMxfp4Bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                 12, 11, 10, 9,  8,  6,  4,  0};

template <>
struct WeightsOf<Mxfp4> {
  static constexpr int kScaleBytes = kGroupTileColumns;
  static constexpr int16_t kZeroPoint = 12;
  static constexpr int kRowsOfQuads = 4;
  static constexpr int kMaxRows = kNarrowSums ? 4 : 6;
  using Sum = SumsOfNibbles<kNarrowSums>::Type;

  static PB_INLINE Vec scale(const uint8_t* w, int v) {
    return mul(load_powers(w + v * kWidth), set1(0.5f));
  }

  // Returns the bytes of a vector's columns for four numbers of k, from number 16 half + 4 j of the
  // group on.
  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    const Quads both = load_quads(w + j * 4 * kGroupTileColumns);
    return looked_up(kMxfp4Bytes, half == 0 ? low_nibbles(both) : high_nibbles(both));
  }
  template <int kRows>
  static PB_INLINE void step(const uint8_t* w, int j, const int8_t* x, int64_t stride,
                             Sum (&sums)[kRows][kGroupTileVectors]) {
    Quads low[kGroupTileVectors], high[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      const Quads both = load_quads(w + v * 4 * kWidth);
      low[v] = looked_up(kMxfp4Bytes, low_nibbles(both));
      high[v] = looked_up(kMxfp4Bytes, high_nibbles(both));
    }
    add_halves(low, high, j, x, stride, sums);
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
