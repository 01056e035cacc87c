// y = x W^T for one compressed tile of bf16 weights (cpu/weights/pack_compressed_bf16.h) and some
// rows.
//
// Numbers are decompressed exactly and multiplied like those of plain bf16 tiles, with the same
// bits. The first rows decompress them as they arrive from memory, and for the other rows a block
// of K at a time.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/gemm/compressed_runs-inl.h"
#include "cpu/kernels/gemm/gemm-inl.h"
#include "cpu/kernels/gemm/gemm_rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

static_assert(Bf16Product::kStep == 2 && kCompressedRun == 2 * kTileColumns);

struct CompressedScratch {
  alignas(64) float parked[kRowChunk * kTileColumns];
  alignas(64) uint16_t numbers[kLargeBlock / sizeof(uint16_t)];
};

// True if there are enough registers to decompress and multiply kRows rows in one loop, and to
// multiply directly from the registers of the decompressed numbers.
template <int kRows>
constexpr bool kDecodesBeside = kRegisters == 32 || kRows <= 2;
template <int kRows>
constexpr bool kMultipliesDecoded = kBf16Products || kRows <= 2;

// sum += a run times the same numbers of each row.
template <int kRows>
PB_INLINE void add_run_products(const Pairs (&run)[kTileVectors], const Bf16Product::Operand* x,
                                int64_t stride, Vec (&sum)[kRows][kTileVectors]) {
#ifdef __AVX512BF16__
  add_column_products(run, x, stride, sum);
#else
#pragma GCC unroll 2
  for (int parity = 0; parity < 2; ++parity) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const Vec column = parity == 0 ? even(run[v]) : odd(run[v]);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        sum[r][v] = mul_add(column, set1(x[r * stride + parity]), sum[r][v]);
      }
    }
  }
#endif
}

// Multiplies the next a.n_k / 2 runs by the same numbers of some rows. With kKeeps, writes numbers
// (runs, kCompressedRun).
template <bool kKeeps, int kRows>
inline __attribute__((noinline)) void compressed_block(const BlockArgs<Bf16Product>& a,
                                                       CompressedCursor& at, uint16_t* numbers) {
  // Runs that are not kept use buffers in turn, because a load directly after the store would wait.
  constexpr int kTurns = 4;
  alignas(64) uint16_t turns[kTurns][kCompressedRun];
  Vec sum[kRows][kTileVectors];
  begin_sums(a.sums, sum);
  const HighBytes high_bytes = load_high_bytes(at.high_bytes);
  CompressedCursor c = at;
  const Bf16Product::Operand* x = a.x;
  for (const int end = c.run + a.n_k / 2; c.run < end; ++c.run) {
    if (a.prefetches) prefetch(c.from, kCompressedBytes);
    uint16_t* const to = kKeeps ? numbers : turns[c.run % kTurns];
    Pairs run[kTileVectors];
    decode(c.from, high_bytes, run);
    const bool is_patched = __builtin_expect(c.patch->run == c.run, 0);
    if (kKeeps || !kMultipliesDecoded<kRows> || is_patched) store_run(run, to);
    if (is_patched) {
      patch_runs<1>(c, to);
      load_run(to, run);
    }
    if constexpr (kMultipliesDecoded<kRows>) {
      add_run_products(run, x, a.x_stride, sum);
    } else {
      Bf16Product::step(to, x, a.x_stride, sum);
    }
    if (kKeeps) numbers += kCompressedRun;
    c.from += kCompressedBytes;
    x += 2;
  }
  at = c;
  end_sums(a.sums, sum);
}

// Writes numbers (n_runs, kCompressedRun) of the next runs.
inline __attribute__((noinline)) void decode_runs(CompressedCursor& at, int n_runs, bool prefetches,
                                                  uint16_t* numbers) {
  const HighBytes high_bytes = load_high_bytes(at.high_bytes);
  CompressedCursor c = at;
  for (const int end = c.run + n_runs; c.run < end; ++c.run) {
    if (prefetches) prefetch(c.from, kCompressedBytes);
    Pairs run[kTileVectors];
    decode(c.from, high_bytes, run);
    store_run(run, numbers);
    patch_runs<1>(c, numbers);
    c.from += kCompressedBytes;
    numbers += kCompressedRun;
  }
  at = c;
}

template <int kRows>
PB_INLINE void decode_and_multiply(BlockArgs<Bf16Product> a, CompressedCursor& at, bool keeps,
                                   uint16_t* numbers) {
  if constexpr (kDecodesBeside<kRows>) {
    if (keeps) {
      compressed_block<true, kRows>(a, at, numbers);
    } else {
      compressed_block<false, kRows>(a, at, nullptr);
    }
    return;
  }
  constexpr int kNearK = 32;  // numbers of k that stay in the cache until they are multiplied
  const BlockSums sums = a.sums;
  const int n_k = a.n_k;
  const bool prefetches = a.prefetches;
  a.prefetches = false;  // the numbers are in the cache
  const int step = keeps ? n_k : kNearK;
  for (int k = 0; k < n_k; k += step) {
    a.n_k = n_k - k < step ? n_k - k : step;
    a.sums.first = sums.first && k == 0;
    a.sums.last = sums.last && k + a.n_k == n_k;
    decode_runs(at, a.n_k / 2, prefetches, numbers);
    gemm_block<Bf16Product, kRows>(a);
    a.x += a.n_k;
  }
}

inline void compressed_tile(const GemmArgs& args, int tile, int row_begin, int row_end,
                            void* scratch) {
  const int n_k = (args.n_in + 1) / 2 * 2;
  const auto* x = static_cast<const Bf16Product::Operand*>(args.x);
  auto* const own = static_cast<CompressedScratch*>(scratch);
  const CompressedCursor begin = begin_compressed(args, tile);
  CompressedCursor at = begin;
  const auto k_block = [](int rows) {
    return block_bytes(rows) / static_cast<int>(kTileColumns * sizeof(uint16_t));
  };
  // With narrow vectors, or if other rows use the decompressed numbers, the product is not
  // memory-bound.
  const bool prefetches = args.prefetch_quick || kRegisters == 16 || row_end - row_begin > kMaxRows;
  const auto multiply = [&](const RowBlock& rows) {
    BlockArgs<Bf16Product> block{own->numbers,  x + rows.row * args.x_stride + rows.k,
                                 args.x_stride, rows.k_end - rows.k,
                                 false,         0,
                                 rows.sums};
    if (rows.first) {
      if (rows.k == 0) at = begin;
      block.prefetches = rows.fresh && prefetches;
      with_count<kMaxRows>(rows.rows, [&]<int kRows>() {
        decode_and_multiply<kRows>(block, at, !rows.alone, own->numbers);
      });
      return;
    }
    if (rows.half_ahead >= 0) {
      block.ahead = reinterpret_cast<intptr_t>(at.from) - reinterpret_cast<intptr_t>(own->numbers) +
                    rows.half_ahead * kHalfLines<kStepBytes<Bf16Product>> * 64;
    }
    with_count<kMaxRows>(rows.rows, [&]<int kRows>() { gemm_block<Bf16Product, kRows>(block); });
  };
  for_blocks<kMaxRows, kTileColumns>(args, tile, row_begin, row_end, n_k, k_block, own->parked,
                                     multiply);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
