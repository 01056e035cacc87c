// y = x W^T for one packed tile of FP8 weights (cpu/pack_fp8.h) and some rows rounded to bf16.
//
// Of a block of 128 k's each output has one accumulator; k ascends; every step is one fma (mul and
// add in the scalar target) of numbers that f32 holds exactly. What a block adds to an output is
// fma(its sum, scale, output), blocks in ascending order. The chain is the same whatever the number
// of rows and where K is cut: at the borders of blocks outputs are parked in f32, exactly.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/even_groups-inl.h"
#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/gemm_rows-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Rows lie as those of bf16 weights do, so that both kinds may share them.
template <bool kAsBf16>
struct Fp8Operand {
  using Type = float;
};
template <>
struct Fp8Operand<true> {
  using Type = uint16_t;
};
using Fp8Row = Fp8Operand<kBf16Row == RowFormat::kBf16>::Type;

PB_INLINE Vec broadcast(float x) { return set1(x); }
PB_INLINE Vec broadcast(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return set1(x);
}

// Bytes of a block of K of a tile.
constexpr int kFp8Scales = kTileColumns * static_cast<int>(sizeof(float));
constexpr int kFp8Bytes = kFp8Scales + kTileColumns * kFp8BlockSize;

struct Fp8BlockArgs {
  const uint8_t* w;  // first block of K
  const Fp8Row* x;   // first row, first k
  int64_t x_stride;
  int n_blocks;
  bool fresh;  // as in RowBlock
  BlockSums sums;
};

// sum += a pair of k's: the even one first, then the odd one.
template <int kRows>
PB_INLINE void fp8_step(const uint8_t* w, const Fp8Row* x, int64_t stride,
                        Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 2
  for (int parity = 0; parity < 2; ++parity) {
    forget(w);  // read again for each, as by ExpandedBf16Product
    Vec column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Fp8Pairs pairs = load_fp8_pairs(w + v * 2 * kWidth);
      column[v] = parity == 0 ? even_of_fp8(pairs) : odd_of_fp8(pairs);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vec b = broadcast(x[r * stride + parity]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = mul_add(column[v], b, sum[r][v]);
    }
  }
}

template <int kRows>
inline __attribute__((noinline)) void fp8_block(const Fp8BlockArgs& a) {
  const uint8_t* w = a.w;
  const Fp8Row* x = a.x;
  BlockSums sums = a.sums;
  for (int b = 0; b < a.n_blocks; ++b) {
    Vec sum[kRows][kTileVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = zero();
    }
    const auto* scales = reinterpret_cast<const float*>(w);
    if (a.fresh) prefetch(w, kFp8Scales);
    w += kFp8Scales;
    for (int k = 0; k < kFp8BlockSize; k += 2) {
      if (a.fresh) prefetch(w, kTileColumns * 2);
      fp8_step(w, x, a.x_stride, sum);
      w += kTileColumns * 2;
      x += 2;
    }
    sums.last = a.sums.last && b + 1 == a.n_blocks;
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Vec scale = mul(load(scales + v * kWidth), set1(kFp8Fraction));
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Vec before = begin_sum(sums, kTileColumns, r, v);
        end_sum(sums, kTileColumns, r, v, mul_add(sum[r][v], scale, before));
      }
    }
    sums.first = false;
  }
}

inline void fp8_tile(const GemmArgs& args, int tile, int row_begin, int row_end, void* scratch) {
  const int n_blocks = args.n_in / kFp8BlockSize;
  const auto* w =
      static_cast<const uint8_t*>(args.weights) + static_cast<size_t>(tile) * n_blocks * kFp8Bytes;
  const auto* x = static_cast<const Fp8Row*>(args.x);
  const auto k_block = [](int rows) {
    const int blocks = (rows < kManyRows ? kSmallBlock : kLargeBlock) / kFp8Bytes;
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
