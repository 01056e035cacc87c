// y = x W^T for one packed tile of FP8 weights (cpu/weights/pack_fp8.h) and some rows rounded to
// bf16.
//
// In a block of 128 numbers of k an output has one accumulator; k ascends; every step is one fma
// (mul and add in the scalar target) or, by vdpbf16ps, one dot product of a pair, of numbers that
// are expanded exactly. A block adds fma(its sum, scale, output) to an output, in ascending order
// of blocks. This chain does not depend on the number of rows or on the blocks of K: at their
// borders outputs are parked in f32, exactly.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/gemm-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/even_groups-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Rows have the layout of rows for bf16 weights, so that both kinds of weights can share them.
template <bool kAsBf16>
struct Fp8Operand {
  using Type = float;
};
template <>
struct Fp8Operand<true> {
  using Type = uint16_t;
};
using Fp8Row = Fp8Operand<kBf16Row == RowFormat::kBf16>::Type;

// The bytes of a block of K of a tile.
constexpr int kFp8Scales = kTileColumns * static_cast<int>(sizeof(float));
constexpr int kFp8Bytes = kFp8Scales + kTileColumns * kFp8BlockSize;

// The product for numbers that are expanded once for many rows.
#ifdef __AVX512BF16__
using Fp8Product = Bf16Product;
constexpr int kFewestFp8Rows = kMaxRows + 1;
#else
using Fp8Product = F32Product;
// Wider vectors expand numbers while they multiply.
constexpr int kFewestFp8Rows = kWidth == 8 ? 24 : 1 << 30;
#endif

// A thread's parked sums, and the numbers of a block of K.
struct Fp8Scratch {
  alignas(64) float parked[kRowChunk * kTileColumns];
  alignas(64) Fp8Product::Number numbers[kFp8BlockSize * kTileColumns];
};

PB_INLINE const uint8_t* fp8_weights(const GemmArgs& args, int tile) {
  const size_t n_blocks = args.n_in / kFp8BlockSize;
  return static_cast<const uint8_t*>(args.weights) + tile * n_blocks * kFp8Bytes;
}

struct Fp8BlockArgs {
  const uint8_t* w;  // first block of K
  const Fp8Row* x;   // first row, first k
  int64_t x_stride;
  int n_blocks;
  bool fresh;  // as in RowBlock
  BlockSums sums;
};

#ifdef __AVX512BF16__
// sum += the products of a pair of k, by vdpbf16ps.
template <int kRows>
PB_INLINE void fp8_step(const uint8_t* w, const Fp8Row* x, int64_t stride,
                        Vec (&sum)[kRows][kTileVectors]) {
  Pairs column[kTileVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; ++v) {
    const Fp8Pairs pairs = load_fp8_pairs(w + v * 2 * kWidth);
    column[v] = pairs_of(even_of_fp8(pairs), odd_of_fp8(pairs));
  }
  add_column_products(column, x, stride, sum);
}
#else
// sum += the products of a pair of k, first the even number and then the odd one.
template <int kRows>
PB_INLINE void fp8_step(const uint8_t* w, const Fp8Row* x, int64_t stride,
                        Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 2
  for (int parity = 0; parity < 2; ++parity) {
    forget(w);  // reloaded for each parity, as in ExpandedBf16Product
    Vec column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Fp8Pairs pairs = load_fp8_pairs(w + v * 2 * kWidth);
      column[v] = parity == 0 ? even_of_fp8(pairs) : odd_of_fp8(pairs);
    }
    add_column_products(column, x + parity, stride, sum);
  }
}
#endif

// outputs += sums of a block of K times its scales.
template <int kRows>
PB_INLINE void scale_fp8_sums(const uint8_t* scales, const Vec (&sum)[kRows][kTileVectors],
                              const BlockSums& outputs) {
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; ++v) {
    const Vec number = load(reinterpret_cast<const float*>(scales) + v * kWidth);
    const Vec scale = mul(number, set1(kFp8Fraction));
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vec before = begin_sum(outputs, kTileColumns, r, v);
      end_sum(outputs, kTileColumns, r, v, mul_add(sum[r][v], scale, before));
    }
  }
}

template <int kRows>
PB_INLINE void clear(Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = zero();
  }
}

template <int kRows>
inline __attribute__((noinline)) void fp8_block(const Fp8BlockArgs& a) {
  const uint8_t* w = a.w;
  const Fp8Row* x = a.x;
  BlockSums sums = a.sums;
  for (int b = 0; b < a.n_blocks; ++b) {
    Vec sum[kRows][kTileVectors];
    clear(sum);
    const uint8_t* const scales = w;
    if (a.fresh) prefetch(w, kFp8Scales);
    w += kFp8Scales;
    for (int k = 0; k < kFp8BlockSize; k += 2) {
      if (a.fresh) prefetch(w, kTileColumns * 2);
      fp8_step(w, x, a.x_stride, sum);
      w += kTileColumns * 2;
      x += 2;
    }
    sums.last = a.sums.last && b + 1 == a.n_blocks;
    scale_fp8_sums(scales, sum, sums);
    sums.first = false;
  }
}

// to (pairs of k, columns, 2), or (k, columns) in f32, = a block's numbers divided by kFp8Fraction.
inline __attribute__((noinline)) void expand_fp8_tile(const uint8_t* block,
                                                      Fp8Product::Number* to) {
  const uint8_t* w = block + kFp8Scales;
  for (int k = 0; k < kFp8BlockSize; k += 2) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Fp8Pairs pairs = load_fp8_pairs(w + v * 2 * kWidth);
#ifdef __AVX512BF16__
      store_pairs(to + v * 2 * kWidth, even_of_fp8(pairs), odd_of_fp8(pairs));
#else
      store(to + v * kWidth, even_of_fp8(pairs));
      store(to + kTileColumns + v * kWidth, odd_of_fp8(pairs));
#endif
    }
    w += kTileColumns * 2;
    to += kTileColumns * 2;
  }
}

// Adds the products of a block of expanded numbers to some rows; x points to the first row at the
// block.
template <int kRows>
inline __attribute__((noinline)) void expanded_fp8_block(const Fp8Product::Number* numbers,
                                                         const uint8_t* scales,
                                                         const Fp8Product::Operand* x,
                                                         int64_t stride, const BlockSums& sums) {
  Vec sum[kRows][kTileVectors];
  clear(sum);
  for (int k = 0; k < kFp8BlockSize; k += Fp8Product::kStep) {
    Fp8Product::step(numbers, x + k, stride, sum);
    numbers += kTileColumns * Fp8Product::kStep;
  }
  scale_fp8_sums(scales, sum, sums);
}

// Multiplies a tile by at most kRowChunk rows; `fresh` is true for the first rows that read the
// tile.
inline void expanded_fp8_tile(const GemmArgs& args, int tile, int row_begin, int row_end,
                              bool fresh, Fp8Scratch* scratch) {
  const int n_blocks = args.n_in / kFp8BlockSize;
  const int n_parts = n_even_groups<kMaxRows>(row_begin, row_end);
  const uint8_t* w = fp8_weights(args, tile);
  const auto* x = static_cast<const Fp8Product::Operand*>(args.x);
  for (int b = 0; b < n_blocks; ++b) {
    expand_fp8_tile(w, scratch->numbers);
    int part = 0;
    for_even_groups<kMaxRows>(row_begin, row_end, [&]<int kRows>(int row) {
      // Each block of rows prefetches a part of the next weights.
      if (fresh) prefetch_part(w + kFp8Bytes, kFp8Bytes, part++, n_parts);
      float* const parked = scratch->parked + (row - row_begin) * kTileColumns;
      expanded_fp8_block<kRows>(
          scratch->numbers, w, x + row * args.x_stride + b * kFp8BlockSize, args.x_stride,
          sums_at(args, row, tile * kTileColumns, parked, b == 0, b + 1 == n_blocks));
    });
    w += kFp8Bytes;
  }
}

inline void fp8_tile(const GemmArgs& args, int tile, int row_begin, int row_end, void* scratch) {
  if (row_end - row_begin >= kFewestFp8Rows) {
    for (int row = row_begin; row < row_end; row += kRowChunk) {
      const int end = row + kRowChunk < row_end ? row + kRowChunk : row_end;
      expanded_fp8_tile(args, tile, row, end, row == row_begin, static_cast<Fp8Scratch*>(scratch));
    }
    return;
  }
  const int n_blocks = args.n_in / kFp8BlockSize;
  const uint8_t* const w = fp8_weights(args, tile);
  const auto* x = static_cast<const Fp8Row*>(args.x);
  const auto k_block = [](int rows) {
    const int blocks = block_bytes(rows) / kFp8Bytes;
    return blocks > 1 ? blocks : 1;
  };
  const auto multiply = [&](const RowBlock& at) {
    const Fp8BlockArgs block{
        w + static_cast<size_t>(at.k) * kFp8Bytes,
        x + at.row * args.x_stride + static_cast<int64_t>(at.k) * kFp8BlockSize,
        args.x_stride,
        at.k_end - at.k,
        at.fresh,
        at.sums};
    with_count<kMaxRows>(at.rows, [&]<int kRows>() { fp8_block<kRows>(block); });
  };
  for_blocks<kMaxRows, kTileColumns>(args, tile, row_begin, row_end, n_blocks, k_block,
                                     static_cast<float*>(scratch), multiply);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
