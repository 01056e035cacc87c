// y = x W^T for one packed weight tile of plain numbers and some rows.
//
// An output has one accumulator; k ascends; every step is one fma (mul and add in the scalar
// target) or one dot product of a bf16 pair. This chain does not depend on the number of rows, on
// their register block, or on the blocks of K, at whose borders accumulators are parked in f32,
// exactly.
#pragma once

#include <type_traits>

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/even_groups-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kTileVectors = 4;
constexpr int kTileColumns = kTileVectors * kWidth;
constexpr int kMaxRows =
    kRegisters == 32 ? 6 : 3;  // rows of a register block, whose chains fill the registers
// The bytes of a tile per block of K. A small block stays in the first-level cache for few rows. A
// large block is better for many rows, for which parking the sums would cost as much.
constexpr int kSmallBlock = 8192;
constexpr int kLargeBlock = 131072;
constexpr int kManyRows = 64;
constexpr int block_bytes(int rows) { return rows < kManyRows ? kSmallBlock : kLargeBlock; }

PB_INLINE Vec broadcast(float x) { return set1(x); }
PB_INLINE Vec broadcast(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return set1(x);
}

// sum += columns times a number of each row.
template <int kRows, typename Operand>
PB_INLINE void add_column_products(const Vec (&column)[kTileVectors], const Operand* x,
                                   int64_t stride, Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const Vec b = broadcast(x[r * stride]);
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = mul_add(column[v], b, sum[r][v]);
  }
}

struct F32Product {
  using Number = float;   // of weights
  using Operand = float;  // of activations
  static constexpr int kStep = 1;

  template <int kRows>
  static PB_INLINE void step(const float* w, const float* x, int64_t stride,
                             Vec (&sum)[kRows][kTileVectors]) {
    Vec column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) column[v] = load(w + v * kWidth);
    add_column_products(column, x, stride, sum);
  }
};

// bf16 operands that are expanded to f32, first the even number of a pair and then the odd one.
struct ExpandedBf16Product {
  using Number = uint16_t;
  using Operand = float;
  static constexpr int kStep = 2;

  template <int kRows>
  static PB_INLINE void step(const uint16_t* w, const float* x, int64_t stride,
                             Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 2
    for (int parity = 0; parity < 2; ++parity) {
      // Reloads the tile row for each parity, because both halves do not fit the registers. With
      // all sums and the rows' numbers, there is room for one vector of the columns of a half.
      forget(w);
      Vec b[kRows];
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) b[r] = set1(x[r * stride + parity]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) {
        const Pairs pairs = load_pairs(w + v * 2 * kWidth);
        const Vec column = parity == 0 ? even(pairs) : odd(pairs);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          sum[r][v] = mul_add(column, b[r], sum[r][v]);
          hold(sum[r][v]);
        }
      }
    }
  }
};

#ifdef __AVX512BF16__
// sum += columns' pairs times a pair of each row, by vdpbf16ps.
template <int kRows>
PB_INLINE void add_column_products(const Pairs (&column)[kTileVectors], const uint16_t* x,
                                   int64_t stride, Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const Pairs b = broadcast_pair(x + r * stride);
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = add_dot(sum[r][v], column[v], b);
  }
}

struct Bf16Product {
  using Number = uint16_t;
  using Operand = uint16_t;
  static constexpr int kStep = 2;

  template <int kRows>
  static PB_INLINE void step(const uint16_t* w, const uint16_t* x, int64_t stride,
                             Vec (&sum)[kRows][kTileVectors]) {
    Pairs column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) column[v] = load_pairs(w + v * 2 * kWidth);
    add_column_products(column, x, stride, sum);
  }
};
#else
using Bf16Product = ExpandedBf16Product;
#endif

// The bytes of weights that one step multiplies.
template <typename Product>
constexpr int kStepBytes =
    kTileColumns * Product::kStep * static_cast<int>(sizeof(typename Product::Number));

// Returns true if computing `rows` rows is memory-bound. Expanding bf16 limits how far a core runs
// ahead, if more rows follow the first register block.
template <typename Product>
constexpr bool is_quick(int rows) {
  return rows <= kMaxRows || !std::is_same_v<Product, ExpandedBf16Product>;
}

// The arguments of a block of rows times a tile over a block of K.
template <typename Product>
struct BlockArgs {
  const typename Product::Number* w;   // first k of the block
  const typename Product::Operand* x;  // first row, first k
  int64_t x_stride;
  int n_k;  // a multiple of kStep
  bool prefetches;
  ptrdiff_t ahead;  // distance for prefetch_half; 0: none
  BlockSums sums;
};

template <int kRows>
PB_INLINE void begin_sums(const BlockSums& from, Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = begin_sum(from, kTileColumns, r, v);
  }
}

template <int kRows>
PB_INLINE void end_sums(const BlockSums& to, const Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) end_sum(to, kTileColumns, r, v, sum[r][v]);
  }
}

template <typename Product, int kRows>
inline __attribute__((noinline)) void gemm_block(const BlockArgs<Product>& a) {
  Vec sum[kRows][kTileVectors];
  begin_sums(a.sums, sum);
  constexpr int kBytes = kStepBytes<Product>;
  const typename Product::Number* w = a.w;
  const typename Product::Operand* x = a.x;
  for (int k = 0; k < a.n_k; k += Product::kStep) {
    if (a.prefetches) prefetch(w, kBytes);
    if (a.ahead != 0) prefetch_half<kBytes>(w, a.ahead);
    Product::step(w, x, a.x_stride, sum);
    w += kTileColumns * Product::kStep;
    x += Product::kStep;
  }
  end_sums(a.sums, sum);
}

template <typename Product>
inline void gemm_tile(const GemmArgs& args, int tile, int row_begin, int row_end, void* scratch) {
  using Number = typename Product::Number;
  const int n_k = (args.n_in + Product::kStep - 1) / Product::kStep * Product::kStep;
  constexpr int kPadding = sizeof(Number) == sizeof(uint16_t) ? kBf16Padding : 1;
  const int padded_k = (args.n_in + kPadding - 1) / kPadding * kPadding;
  const auto* w = static_cast<const Number*>(args.weights) +
                  static_cast<size_t>(tile) * kTileColumns * padded_k;
  const auto* x = static_cast<const typename Product::Operand*>(args.x);
  const auto k_block = [](int rows) {
    return block_bytes(rows) / static_cast<int>(kTileColumns * sizeof(Number));
  };
  const bool prefetches = args.prefetch_quick || !is_quick<Product>(row_end - row_begin);
  const auto multiply = [&](const RowBlock& at) {
    const int n_steps = (at.k_end - at.k) / Product::kStep;
    const BlockArgs<Product> block{w + static_cast<size_t>(at.k) * kTileColumns,
                                   x + at.row * args.x_stride + at.k,
                                   args.x_stride,
                                   at.k_end - at.k,
                                   at.fresh && prefetches,
                                   at.distance_ahead<kStepBytes<Product>>(n_steps),
                                   at.sums};
    with_count<kMaxRows>(at.rows, [&]<int kRows>() { gemm_block<Product, kRows>(block); });
  };
  for_blocks<kMaxRows, kTileColumns>(args, tile, row_begin, row_end, n_k, k_block,
                                     static_cast<float*>(scratch), multiply);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
