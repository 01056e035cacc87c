// y = x W^T for one packed tile (cpu/weights/group_tiles.h) and some rows of quantised activations,
// for formats with minimums or with a scale for each half of a group.
//
// In a group of 32 along K all whole numbers are multiplied and summed exactly. A group adds to an
// output, with s the scale of the row's group and x its whole numbers:
//   one scale and min for a group
//     fma(float(sum(q x)), scale s, output), then fma(-min, total, output)
//     where total is s times the sum of the row's whole numbers
//   a scale for each half, codes with a zero point
//     fma(float(scale_0 sum_0((q - zero) x) + scale_1 sum_1((q - zero) x)), d s, output)
//   a scale and a min for each half
//     fma(float(scale_0 sum_0(q x) + scale_1 sum_1(q x)), d s, output), then
//     fma(-float(min_0 sum_0(x) + min_1 sum_1(x)), d_min s, output)
// groups in ascending order. The whole sums are below 2^24, so that float() is exact.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Weights that use the product of blocks.
template <typename Weights>
concept HasBlocks = requires { Weights::kHasHalves; };

// The following structs return the factors of a group for vector v of the columns. d and d_min are
// the f16 numbers at the start of the block; `factors` points to the group's factors, which precede
// its codes.

// Q4_K and Q5_K have a scale and a min of 6 bits for each group.
struct SuperScaleAndMin {
  static constexpr bool kHasMin = true;
  static constexpr bool kHasHalves = false;
  static constexpr int kGroups = kGroupsOfSuperBlock;
  static constexpr int kFactors = 2 * kGroupTileColumns;  // bytes

  static PB_INLINE Vec scale(Vec d, const uint8_t* factors, int v) {
    return mul(d, to_float(load_unsigned(factors + v * kWidth)));
  }
  static PB_INLINE Vec min(Vec d_min, const uint8_t* factors, int v) {
    return mul(d_min, to_float(load_unsigned(factors + kGroupTileColumns + v * kWidth)));
  }
};

// Q3_K and Q6_K have a signed scale for each half of a group.
struct SuperHalfScales {
  static constexpr bool kHasMin = false;
  static constexpr bool kHasHalves = true;
  static constexpr int kGroups = kGroupsOfSuperBlock;
  static constexpr int kFactors = 2 * kGroupTileColumns;

  static PB_INLINE Ints half_scale(const uint8_t* factors, int half, int v) {
    return load_signed(factors + half * kGroupTileColumns + v * kWidth);
  }
};

// Q4_1 and Q5_1 have blocks of one group, in which d is the scale and d_min is added.
struct GroupScaleAndMin {
  static constexpr bool kHasMin = true;
  static constexpr bool kHasHalves = false;
  static constexpr int kGroups = 1;
  static constexpr int kFactors = 0;

  static PB_INLINE Vec scale(Vec d, const uint8_t*, int) { return d; }
  static PB_INLINE Vec min(Vec d_min, const uint8_t*, int) { return sub(zero(), d_min); }
};

// Q2_K has a byte for each half of a group, with a scale in its low nibble and a min in its high
// nibble.
struct SuperHalfScalesAndMins {
  static constexpr bool kHasMin = true;
  static constexpr bool kHasHalves = true;
  static constexpr int kGroups = kGroupsOfSuperBlock;
  static constexpr int kFactors = 2 * kGroupTileColumns;

  static PB_INLINE Ints half_min(const uint8_t* factors, int half, int v) {
    return shift_right<4>(load_unsigned(factors + half * kGroupTileColumns + v * kWidth));
  }
  static PB_INLINE Ints half_scale(const uint8_t* factors, int half, int v) {
    const Ints both = load_unsigned(factors + half * kGroupTileColumns + v * kWidth);
    return sub_ints(both, pair_up(half_min(factors, half, v), set1_int(0), 4));
  }
};

template <>
struct WeightsOf<Q4K> : Codes<4>, SuperScaleAndMin {};
template <>
struct WeightsOf<Q5K> : Codes<5>, SuperScaleAndMin {};
template <>
struct WeightsOf<Q6K> : Codes<6>, SuperHalfScales {
  static constexpr int kZeroShift = 5;  // 2^5 = Q6K::kZero
};
template <>
struct WeightsOf<Q3K> : Codes<3>, SuperHalfScales {
  static constexpr int kZeroShift = 2;  // 2^2 = Q3K::kZero
};
template <>
struct WeightsOf<Q2K> : Codes<2>, SuperHalfScalesAndMins {};
template <>
struct WeightsOf<Q4_1> : Codes<4>, GroupScaleAndMin {};
template <>
struct WeightsOf<Q5_1> : Codes<5>, GroupScaleAndMin {};

// The rows of a register block, whose sums fill the registers.
constexpr int kMaxSuperRows = kRegisters == 32 && kByteProducts ? 6 : 4;

// The steps between two times that sums are widened. Halves with separate factors have separate
// sums.
template <typename Weights>
constexpr int kMostSteps = Weights::kHasHalves ? kStepsOfHalf : 2 * kStepsOfHalf;
template <typename Weights>
constexpr int kStepsOfSum =
    kNarrowSums && Weights::kNarrowSteps < kMostSteps<Weights> ? Weights::kNarrowSteps
                                                               : kMostSteps<Weights>;

template <typename Weights>
// Bytes of d and d_min.
constexpr int kSuperScales = (Weights::kHasMin ? 4 : 2) * kGroupTileColumns;
template <typename Weights>
constexpr int kSuperGroup = Weights::kFactors + Weights::kRowsOfQuads * kQuadBytes;
template <typename Weights>
constexpr int kSuperBytes = kSuperScales<Weights> + Weights::kGroups * kSuperGroup<Weights>;

// Returns a group of a block: its factors, followed by its codes.
template <typename Weights>
PB_INLINE const uint8_t* super_group(const uint8_t* super, int group) {
  return super + kSuperScales<Weights> + group * kSuperGroup<Weights>;
}

// whole = the sums of a group's products; if halves have scales, each half is multiplied by its own
// (factor). For one row, the data at `ahead` is prefetched, unless it is null because the CPU's
// prefetchers suffice.
template <typename Weights, int kRows>
PB_INLINE void sum_group(const Ints (&factor)[2][kGroupTileVectors], const uint8_t* numbers,
                         const int8_t* x, int64_t x_stride, Ints (&whole)[kRows][kGroupTileVectors],
                         const uint8_t* ahead) {
  constexpr int kSteps = kStepsOfSum<Weights>;
  ByteSums part[kRows][kGroupTileVectors];
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kStepsOfHalf; ++i) {
    const int half = i / kStepsOfHalf;
    if (kRows == 1 && ahead != nullptr) {
      prefetch_in_step<kSuperBytes<Weights> / Weights::kGroups, 2 * kStepsOfHalf>(ahead, i);
    }
    Quads column[kGroupTileVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      column[v] = Weights::numbers(numbers + v * 4 * kWidth, half, i % kStepsOfHalf);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const QuadFactor f = quad_factor(x + r * x_stride + 4 * i);
#pragma GCC unroll 2
      for (int v = 0; v < kGroupTileVectors; ++v) {
        part[r][v] = add_products(i % kSteps == 0 ? no_sums() : part[r][v], column[v], f);
        if ((i + 1) % kSteps != 0) continue;
        const Ints done =
            Weights::kHasHalves ? times(part[r][v], factor[half][v]) : total(part[r][v]);
        whole[r][v] = i < kSteps ? done : add_ints(whole[r][v], done);
      }
    }
  }
}

#ifdef __ARM_FEATURE_MATMUL_INT8
// Does the same for several rows.
template <typename Weights, int kRows>
  requires(kRows > 1)
PB_INLINE void sum_group(const Ints (&factor)[2][kGroupTileVectors], const uint8_t* numbers,
                         const int8_t* x, int64_t x_stride, Ints (&whole)[kRows][kGroupTileVectors],
                         const uint8_t*) {
  PairSums<kRows, kGroupTileVectors> pairs[2];
  PairSums<kRows, kGroupTileVectors>& second = pairs[Weights::kHasHalves ? 1 : 0];
  pairs[0].template add<Weights>(numbers, 0, x, x_stride);
  second.template add<Weights>(numbers, 1, x, x_stride);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      whole[r][v] = Weights::kHasHalves ? add_ints(times(pairs[0].of(r, v), factor[0][v]),
                                                   times(second.of(r, v), factor[1][v]))
                                        : pairs[0].of(r, v);
    }
  }
}
#endif

// The f16 numbers at the start of a block, for all columns.
struct SuperScales {
  Vec d[kGroupTileVectors];
  Vec d_min[kGroupTileVectors];
};

template <typename Weights>
PB_INLINE SuperScales load_super_scales(const uint8_t* super) {
  SuperScales scales;
#pragma GCC unroll 2
  for (int v = 0; v < kGroupTileVectors; ++v) {
    const auto* d = reinterpret_cast<const uint16_t*>(super) + v * kWidth;
    scales.d[v] = load_f16(d);
    if constexpr (Weights::kHasMin) scales.d_min[v] = load_f16(d + kGroupTileColumns);
  }
  return scales;
}

// sum (kRows) += one group. `factors` points to the group's factors, which precede its codes; x and
// groups point to the first row.
template <typename Weights, int kRows>
PB_INLINE void add_group(const GroupBlockArgs& a, const SuperScales& super, const uint8_t* factors,
                         const int8_t* x, const RowGroup* groups, const uint8_t* ahead,
                         Vec (&sum)[kRows][kGroupTileVectors]) {
  Ints factor[2][kGroupTileVectors];
  if constexpr (Weights::kHasHalves) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      factor[0][v] = Weights::half_scale(factors, 0, v);
      factor[1][v] = Weights::half_scale(factors, 1, v);
    }
  }
  Ints whole[kRows][kGroupTileVectors];
  sum_group<Weights>(factor, factors + Weights::kFactors, x, a.x_stride, whole, ahead);
#pragma GCC unroll 2
  for (int v = 0; v < kGroupTileVectors; ++v) {
    if constexpr (!Weights::kHasHalves) {
      const Vec scale = Weights::scale(super.d[v], factors, v);
      const Vec min = Weights::min(super.d_min[v], factors, v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& row = groups[r * a.group_stride];
        sum[r][v] = mul_add(to_float(whole[r][v]), mul(scale, set1(row.scale)), sum[r][v]);
        sum[r][v] = neg_mul_add(min, set1(row.total), sum[r][v]);
      }
    } else if constexpr (Weights::kHasMin) {
      const Ints mins =
          pair_up(Weights::half_min(factors, 0, v), Weights::half_min(factors, 1, v), 0);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& row = groups[r * a.group_stride];
        const Vec of_row = set1(row.scale);
        sum[r][v] = mul_add(to_float(whole[r][v]), mul(super.d[v], of_row), sum[r][v]);
        sum[r][v] = neg_mul_add(to_float(pair_products(mins, row.halves)),
                                mul(super.d_min[v], of_row), sum[r][v]);
      }
    } else {
      const Ints zero_factors = pair_up(factor[0][v], factor[1][v], Weights::kZeroShift);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& row = groups[r * a.group_stride];
        const Ints exact = sub_ints(whole[r][v], pair_products(zero_factors, row.halves));
        sum[r][v] = mul_add(to_float(exact), mul(super.d[v], set1(row.scale)), sum[r][v]);
      }
    }
  }
}

// Multiplies blocks; a.n_groups is the number of blocks.
template <typename Weights, int kRows>
inline __attribute__((noinline)) void super_blocks(const GroupBlockArgs& a) {
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
  for (int b = 0; b < a.n_groups; ++b, w += kSuperBytes<Weights>) {
    const SuperScales super = load_super_scales<Weights>(w);
#pragma GCC unroll 1
    for (int g = 0; g < Weights::kGroups; ++g, x += kGroupSize, ++groups) {
      constexpr int kBytes = kSuperBytes<Weights> / Weights::kGroups;
      if (kRows > 1 && a.prefetches) prefetch(w + g * kBytes, kBytes);
      const uint8_t* const ahead = a.prefetches ? w + g * kBytes : nullptr;
      add_group<Weights, kRows>(a, super, super_group<Weights>(w, g), x, groups, ahead, sum);
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

// The product of blocks, which are its blocks of K.
template <typename Weights>
struct SuperBlockProduct {
  static constexpr int kLength = Weights::kGroups * kGroupSize;
  static constexpr int kBytes = kSuperBytes<Weights>;
  static constexpr int kMaxRows = kMaxSuperRows;
  static constexpr bool is_quick(int rows) { return rows == 1; }  // as in GroupProduct
  template <int kRows>
  static PB_INLINE void block(const GroupBlockArgs& a) {
    super_blocks<Weights, kRows>(a);
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
