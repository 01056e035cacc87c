// y = x W^T for one packed tile of super-blocks (cpu/weights/pack_super_blocks.h) and some rows of
// quantised activations.
//
// In a group of 32 along K all whole numbers are multiplied and summed exactly. What a group adds
// to an output is, with d and d_min of the super-block and s the scale of the row's group:
//   Q4_K, Q5_K  fma(float(sum(q x)), (d scale) s, output), then fma(-(d_min min), total, output),
//               where total is s times the sum of the row's whole numbers
//   Q6_K        fma(float(scale_0 sum_0((q - 32) x) + scale_1 sum_1((q - 32) x)), d s, output):
//               below 2^24, so that float() is exact
// groups in ascending order.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_groups-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kGroupsOfBlock = 8;  // groups of 32 in a super-block
constexpr int kQuadBytes = 4 * kGroupTileColumns;
// Steps of a group: four k's each, those of the first half from low nibbles, then those of the
// second from high ones.
constexpr int kStepsOfHalf = 4;

struct Q4KWeights {
  static constexpr bool kHasMin = true;
  static constexpr int kRowsOfQuads = 4;
  static constexpr int kNarrowSteps = 8;  // whose products narrow sums can hold: 8 * 2 * 15 * 128

  // The whole numbers of 8 or 16 columns of a step.
  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    const Quads both = load_quads(w + j * kQuadBytes);
    return half == 0 ? low_nibbles(both) : high_nibbles(both);
  }
};

struct Q5KWeights {
  static constexpr bool kHasMin = true;
  static constexpr int kRowsOfQuads = 5;
  static constexpr int kNarrowSteps = 4;  // 4 * 2 * 31 * 128

  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    const Quads fifth = load_quads(w);
    return or_quads(Q4KWeights::numbers(w + kQuadBytes, half, j),
                    masked_shift(fifth, half == 0 ? 4 - j : -j, 0x10));
  }
};

struct Q6KWeights {
  static constexpr bool kHasMin = false;
  static constexpr int kRowsOfQuads = 6;
  static constexpr int kNarrowSteps = 2;  // 2 * 2 * 63 * 128

  static PB_INLINE Quads numbers(const uint8_t* w, int half, int j) {
    const Quads high = load_quads(w + half * kQuadBytes);
    return or_quads(Q4KWeights::numbers(w + 2 * kQuadBytes, half, j),
                    masked_shift(high, 4 - 2 * j, 0x30));
  }
};

// Rows of a register block: their sums fill the registers.
constexpr int kMaxSuperRows = kRegisters == 32 && kByteProducts ? 6 : 4;

// Steps between two hand-overs of sums. In Q6_K the halves of a group have factors of their own.
template <typename Weights>
constexpr int kStepsOfSum = kNarrowSums        ? Weights::kNarrowSteps
                            : Weights::kHasMin ? 2 * kStepsOfHalf
                                               : kStepsOfHalf;

template <typename Weights>
constexpr int kSuperScales = (Weights::kHasMin ? 4 : 2) * kGroupTileColumns;  // bytes before them
constexpr int kGroupScales = 2 * kGroupTileColumns;  // bytes of a group's scales
template <typename Weights>
constexpr int kSuperGroup = kGroupScales + Weights::kRowsOfQuads * kQuadBytes;
template <typename Weights>
constexpr int kSuperBytes = kSuperScales<Weights> + kGroupsOfBlock * kSuperGroup<Weights>;

// The scales of a group of a super-block, which its numbers follow.
template <typename Weights>
PB_INLINE const uint8_t* super_group(const uint8_t* super, int group) {
  return super + kSuperScales<Weights> + group * kSuperGroup<Weights>;
}

// What the groups of a super-block share, of all columns.
struct SuperScales {
  Vec d[kGroupTileVectors];
  Vec d_min[kGroupTileVectors];
};

// whole = the sums of a group's products, each half times its factor in Q6_K. factor: of columns.
// ahead: of one row, what lies ahead of it is prefetched; null: the CPU fetches it by itself.
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
      prefetch_in_step<kSuperBytes<Weights> / kGroupsOfBlock, 2 * kStepsOfHalf>(ahead, i);
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
        const Ints done = Weights::kHasMin ? total(part[r][v]) : times(part[r][v], factor[half][v]);
        whole[r][v] = i < kSteps ? done : add_ints(whole[r][v], done);
      }
    }
  }
}

#ifdef __ARM_FEATURE_MATMUL_INT8
// The same of several rows.
template <typename Weights, int kRows>
  requires(kRows > 1)
PB_INLINE void sum_group(const Ints (&factor)[2][kGroupTileVectors], const uint8_t* numbers,
                         const int8_t* x, int64_t x_stride, Ints (&whole)[kRows][kGroupTileVectors],
                         const uint8_t*) {
  PairSums<kRows, kGroupTileVectors> pairs[2];
  PairSums<kRows, kGroupTileVectors>& second = pairs[Weights::kHasMin ? 0 : 1];
  pairs[0].template add<Weights>(numbers, 0, x, x_stride);
  second.template add<Weights>(numbers, 1, x, x_stride);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      whole[r][v] = Weights::kHasMin ? pairs[0].of(r, v)
                                     : add_ints(times(pairs[0].of(r, v), factor[0][v]),
                                                times(second.of(r, v), factor[1][v]));
    }
  }
}
#endif

// sum (kRows) += one group. scales: of the group, before its numbers. x, groups: of the first row.
template <typename Weights, int kRows>
PB_INLINE void add_group(const GroupBlockArgs& a, const SuperScales& super, const uint8_t* scales,
                         const int8_t* x, const RowGroup* groups, const uint8_t* ahead,
                         Vec (&sum)[kRows][kGroupTileVectors]) {
  Ints factor[2][kGroupTileVectors];
  if constexpr (!Weights::kHasMin) {
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      factor[0][v] = load_signed(scales + v * kWidth);
      factor[1][v] = load_signed(scales + kGroupTileColumns + v * kWidth);
    }
  }
  Ints whole[kRows][kGroupTileVectors];
  sum_group<Weights>(factor, scales + kGroupScales, x, a.x_stride, whole, ahead);
#pragma GCC unroll 2
  for (int v = 0; v < kGroupTileVectors; ++v) {
    if constexpr (Weights::kHasMin) {
      const Vec scale = mul(super.d[v], to_float(load_unsigned(scales + v * kWidth)));
      const Vec min =
          mul(super.d_min[v], to_float(load_unsigned(scales + kGroupTileColumns + v * kWidth)));
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& row = groups[r * a.group_stride];
        sum[r][v] = mul_add(to_float(whole[r][v]), mul(scale, set1(row.scale)), sum[r][v]);
        sum[r][v] = neg_mul_add(min, set1(row.total), sum[r][v]);
      }
    } else {
      constexpr int kShiftOfZero = 5;  // 2^5 = kQ6Zero
      const Ints zero_factors = pair_up(factor[0][v], factor[1][v], kShiftOfZero);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const RowGroup& row = groups[r * a.group_stride];
        const Ints exact = sub_ints(whole[r][v], pair_products(zero_factors, row.halves));
        sum[r][v] = mul_add(to_float(exact), mul(super.d[v], set1(row.scale)), sum[r][v]);
      }
    }
  }
}

// n_groups of the arguments are super-blocks here.
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
    SuperScales super;
#pragma GCC unroll 2
    for (int v = 0; v < kGroupTileVectors; ++v) {
      const auto* d = reinterpret_cast<const uint16_t*>(w) + v * kWidth;
      super.d[v] = load_f16(d);
      if constexpr (Weights::kHasMin) super.d_min[v] = load_f16(d + kGroupTileColumns);
    }
#pragma GCC unroll 1
    for (int g = 0; g < kGroupsOfBlock; ++g, x += kGroupSize, ++groups) {
      constexpr int kBytes = kSuperBytes<Weights> / kGroupsOfBlock;
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

// The product of super-blocks, which are its blocks of K.
template <typename Weights>
struct SuperBlockProduct {
  static constexpr int kLength = kGroupsOfBlock * kGroupSize;
  static constexpr int kBytes = kSuperBytes<Weights>;
  static constexpr int kMaxRows = kMaxSuperRows;
  static constexpr bool is_quick(int rows) { return rows == 1; }  // as of GroupProduct
  template <int kRows>
  static PB_INLINE void block(const GroupBlockArgs& a) {
    super_blocks<Weights, kRows>(a);
  }
};

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
