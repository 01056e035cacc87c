// y = x W^T for one packed weight tile and some rows.
//
// One accumulator per output; k ascends; every step is one fma (mul and add in the scalar target)
// or one dot product of a bf16 pair. That chain is the same whatever the number of rows, the
// register block they fall in and the blocks of K, at whose borders accumulators are parked in f32,
// exactly.
#pragma once

#include "cpu/kernels.h"
#include "cpu/rows-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kTileVectors = 4;
constexpr int kTileColumns = kTileVectors * kWidth;
constexpr int kMaxRows =
    kRegisters == 32 ? 6 : 3;   // of a register block: its chains fill the registers
constexpr int kRowChunk = 192;  // rows that pass over a block of K while it is hot
constexpr int kGemmScratch = kRowChunk * kTileColumns;

// Bytes of a tile that a block of K takes: few, so that it stays in the first cache, where few rows
// pass over it; more where many do and parking their sums would cost as much.
constexpr int kSmallBlock = 8192;
constexpr int kLargeBlock = 131072;
constexpr int kManyRows = 64;
// Bytes ahead in the tile that are asked for, into the second cache and into the first.
constexpr int kFarPrefetch = 8192;
constexpr int kNearPrefetch = 1024;

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
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vec b = set1(x[r * stride]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = mul_add(column[v], b, sum[r][v]);
    }
  }
};

// bf16 operands that are expanded to f32: the even one of a pair first, then the odd one.
struct ExpandedBf16Product {
  using Number = uint16_t;
  using Operand = float;
  static constexpr int kStep = 2;

  template <int kRows>
  static PB_INLINE void step(const uint16_t* w, const float* x, int64_t stride,
                             Vec (&sum)[kRows][kTileVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Pairs pairs = load_pairs(w + v * 2 * kWidth);
      const Vec first = even(pairs);
      const Vec second = odd(pairs);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) sum[r][v] = mul_add(first, set1(x[r * stride]), sum[r][v]);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        sum[r][v] = mul_add(second, set1(x[r * stride + 1]), sum[r][v]);
      }
    }
  }
};

#ifdef __AVX512BF16__
// Pairs by vdpbf16ps.
struct Bf16Product {
  using Number = uint16_t;
  using Operand = uint16_t;
  static constexpr int kStep = 2;

  template <int kRows>
  static PB_INLINE void step(const uint16_t* w, const uint16_t* x, int64_t stride,
                             Vec (&sum)[kRows][kTileVectors]) {
    __m512i column[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) column[v] = load_pairs(w + v * 2 * kWidth);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, x + r * stride, sizeof(pair));
      const __m512bh b = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)column[v], b);
      }
    }
  }
};
#else
using Bf16Product = ExpandedBf16Product;
#endif

// What a block of rows does to some columns of a tile over a block of K.
template <typename Product>
struct BlockArgs {
  const typename Product::Number* w;   // first k of the block, first column
  const typename Product::Operand* x;  // first row, first k
  int64_t x_stride;
  int n_k;        // a multiple of kStep
  float* parked;  // (rows, kTileColumns): sums so far
  bool first;     // block of K: sums start at zero
  bool last;      // block of K: sums go to y
  float* y;       // first row, first column of the tile
  int64_t y_stride;
  const float* bias;  // of the tile's columns, or null
  int n_columns;      // of the tile that exist
  bool add;
};

template <typename Product, int kRows>
inline __attribute__((noinline)) void gemm_block(const BlockArgs<Product>& a) {
  Vec sum[kRows][kTileVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      sum[r][v] = a.first ? zero() : load(a.parked + r * kTileColumns + v * kWidth);
    }
  }
  const typename Product::Number* w = a.w;
  const typename Product::Operand* x = a.x;
  for (int k = 0; k < a.n_k; k += Product::kStep) {
    constexpr int kStepBytes = kTileColumns * Product::kStep * sizeof(*w);
#pragma GCC unroll 4
    for (int line = 0; line < kStepBytes; line += 64) {
      __builtin_prefetch(reinterpret_cast<const char*>(w) + kFarPrefetch + line, 0, 2);
      __builtin_prefetch(reinterpret_cast<const char*>(w) + kNearPrefetch + line, 0, 3);
    }
    Product::step(w, x, a.x_stride, sum);
    w += kTileColumns * Product::kStep;
    x += Product::kStep;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const int c = v * kWidth;
      if (!a.last) {
        store(a.parked + r * kTileColumns + c, sum[r][v]);
      } else if (c < a.n_columns) {
        float* y = a.y + r * a.y_stride;
        Vec out = sum[r][v];
        if (a.bias != nullptr) out = add(out, load(a.bias + c));
        if (a.add) out = add(load_tail(y, c, a.n_columns), out);
        store_tail(y, c, a.n_columns, out);
      }
    }
  }
}

// gemm_block of 1 <= rows <= kRows.
template <typename Product, int kRows>
PB_INLINE void gemm_rows(const BlockArgs<Product>& block, int rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return gemm_rows<Product, kRows - 1>(block, rows);
  }
  gemm_block<Product, kRows>(block);
}

template <typename Product>
inline void gemm_tile(const GemmArgs& args, int tile, int row_begin, int row_end, float* scratch) {
  using Number = typename Product::Number;
  using Operand = typename Product::Operand;
  const int n_k = (args.n_in + Product::kStep - 1) / Product::kStep * Product::kStep;
  const auto* w =
      static_cast<const Number*>(args.weights) + static_cast<size_t>(tile) * kTileColumns * n_k;
  const auto* x = static_cast<const Operand*>(args.x);
  const int first_column = tile * kTileColumns;

  for (int chunk = row_begin; chunk < row_end; chunk += kRowChunk) {
    const int chunk_end = chunk + kRowChunk < row_end ? chunk + kRowChunk : row_end;
    const int n_blocks = (chunk_end - chunk + kMaxRows - 1) / kMaxRows;
    const int block_bytes = chunk_end - chunk < kManyRows ? kSmallBlock : kLargeBlock;
    const int k_block =
        n_blocks == 1 ? n_k : block_bytes / static_cast<int>(kTileColumns * sizeof(Number));
    for (int k = 0; k < n_k; k += k_block) {
      const int k_end = k + k_block < n_k ? k + k_block : n_k;
      int row = chunk;
      for (int b = 0; b < n_blocks; ++b) {
        const int rows = (chunk_end - row + n_blocks - b - 1) / (n_blocks - b);
        const BlockArgs<Product> block{
            w + static_cast<size_t>(k) * kTileColumns,
            x + row * args.x_stride + k,
            args.x_stride,
            k_end - k,
            scratch + static_cast<size_t>(row - chunk) * kTileColumns,
            k == 0,
            k_end == n_k,
            args.y + static_cast<size_t>(row) * args.n_out + first_column,
            args.n_out,
            args.bias == nullptr ? nullptr : args.bias + first_column,
            args.n_out - first_column,
            args.add};
        gemm_rows<Product, kMaxRows>(block, rows);
        row += rows;
      }
    }
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
