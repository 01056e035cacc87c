// Products of bf16 for two rows at a time, by bfmmla: two columns' four numbers of k times two
// rows' of the same, added to four sums.
//
// A single row is paired with itself, so that every output is one chain of the same instruction,
// over k in fours, in any batch. The instruction rounds each sum of two products, and each sum with
// the old output, to odd, and takes numbers below 2^-126 for zero, independent of FPCR as long as
// its bit EBF is zero, as systems leave it (Arm Architecture Reference Manual, BFMMLA).
#pragma once

#include <type_traits>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

struct PairedBf16Product {
  using Number = uint16_t;
  using Operand = uint16_t;
  static constexpr int kStep = 4;  // weights and rows are padded to kBf16Padding
};

PB_INLINE Vec add_products(Vec sums, Pairs columns, Pairs rows) {
  return vbfmmlaq_f32(sums, vreinterpretq_bf16_u32(columns), vreinterpretq_bf16_u32(rows));
}

// Does the work of gemm_block for other products (gemm-inl.h).
template <typename Product, int kRows>
  requires std::is_same_v<Product, PairedBf16Product>
inline __attribute__((noinline)) void gemm_block(const BlockArgs<Product>& a) {
  constexpr int kPairs = (kRows + 1) / 2;
  const auto second = [](int p) { return 2 * p + 1 < kRows ? 2 * p + 1 : 2 * p; };
  Vec sum[kPairs][kTileVectors][2];  // for each two columns: (column, row of the pair)
#pragma GCC unroll 3
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Vec one = begin_sum(a.sums, kTileColumns, 2 * p, v);
      const Vec other = begin_sum(a.sums, kTileColumns, second(p), v);
      sum[p][v][0] = vzip1q_f32(one, other);
      sum[p][v][1] = vzip2q_f32(one, other);
    }
  }
  const uint16_t* w = a.w;
  const uint16_t* x = a.x;
  for (int k = 0; k < a.n_k; k += Product::kStep) {
    prefetch(w, kTileColumns * Product::kStep * static_cast<int>(sizeof(*w)));
    Pairs rows[kPairs];
#pragma GCC unroll 3
    for (int p = 0; p < kPairs; ++p) {
      const uint16x4_t one = vld1_u16(x + 2 * p * a.x_stride);
      rows[p] = vreinterpretq_u32_u16(vcombine_u16(one, vld1_u16(x + second(p) * a.x_stride)));
    }
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Pairs first = load_pairs(w + v * 2 * kWidth);
      const Pairs next = load_pairs(w + (kTileVectors + v) * 2 * kWidth);
      const Pairs low = vzip1q_u32(first, next);   // columns 0 and 1
      const Pairs high = vzip2q_u32(first, next);  // columns 2 and 3
#pragma GCC unroll 3
      for (int p = 0; p < kPairs; ++p) {
        sum[p][v][0] = add_products(sum[p][v][0], low, rows[p]);
        sum[p][v][1] = add_products(sum[p][v][1], high, rows[p]);
      }
    }
    w += kTileColumns * Product::kStep;
    x += Product::kStep;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Vec* pair = sum[r / 2][v];
      end_sum(a.sums, kTileColumns, r, v,
              r % 2 == 0 ? vuzp1q_f32(pair[0], pair[1]) : vuzp2q_f32(pair[0], pair[1]));
    }
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
