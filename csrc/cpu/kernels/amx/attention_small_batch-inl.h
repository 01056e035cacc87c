// The products of amx/attention-inl.h on vectors, bit for bit, for queries that are too few to fill
// tiles.
//
// In each cell, a tile product adds the products of even numbers in one chain from zero, those of
// odd numbers in another chain, and then the sum of both to the old value; products of bf16 are
// exact in f32 (Intel SDM, TDPBF16PS). Vectors compute the same if subnormal operands and results
// count as zero. Only the choice among several NaNs may differ.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/attention/attention-inl.h"
#include "cpu/kernels/attention/softmax_bf16-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Sets the rounding of vectors to that of AMX, while the object exists: to nearest, with subnormals
// as zero. The computation in between has to read its inputs from memory and write its results to
// memory, or the compiler may move it.
class TileRounding {
 public:
  PB_INLINE TileRounding() {
    constexpr uint32_t kFlushing = 0x9fc0;  // FTZ, DAZ, all exceptions masked
    asm volatile("stmxcsr %0" : "=m"(before_)::"memory");
    asm volatile("ldmxcsr %0" ::"m"(kFlushing) : "memory");
  }
  PB_INLINE ~TileRounding() { asm volatile("ldmxcsr %0" ::"m"(before_) : "memory"); }
  TileRounding(const TileRounding&) = delete;
  TileRounding& operator=(const TileRounding&) = delete;

 private:
  uint32_t before_;
};

// Computes the scores of queries like TileQueries.
template <int kQueries>
struct SmallBatchQueries {
  const float* numbers;  // f32 (kQueries, head_dim) with values of bf16
  int score_stride;

  template <int kTiles>
  PB_INLINE void score(const KvLayout& kv, const std::byte* const* keys, const ptrdiff_t* ahead,
                       int step, float* scores) const {
    const int64_t stride = kv.key_stride * 4;
    Vec sum[kQueries][kTiles] = {};
    int64_t at = 0;
    for (int d = 0; d < kv.head_dim; d += kChunk) {
      Vec evens[kQueries][kTiles] = {}, odds[kQueries][kTiles] = {};
#pragma GCC unroll 2
      for (int pair = 0; pair < kChunk / 2; ++pair, at += stride) {
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) {
          prefetch_piece<64>(keys[t] + at, 0, ahead[t]);
          const Pairs k = load_pairs(reinterpret_cast<const uint16_t*>(keys[t] + at));
          const Vec first = even(k), second = odd(k);
#pragma GCC unroll 2
          for (int i = 0; i < kQueries; ++i) {
            const float* q = numbers + i * kv.head_dim + d + 2 * pair;
            evens[i][t] = mul_add(first, set1(q[0]), evens[i][t]);
            odds[i][t] = mul_add(second, set1(q[1]), odds[i][t]);
          }
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) sum[i][t] = add(sum[i][t], add(evens[i][t], odds[i][t]));
      }
    }
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
#pragma GCC unroll 2
      for (int i = 0; i < kQueries; ++i) store(scores + i * score_stride + t * step, sum[i][t]);
    }
  }
};

// out (kQueries, out_stride) = probabilities (kQueries, stride) times values, for kTwos * 32
// columns from `column` on. The probabilities are f32 with values of bf16.
template <int kQueries, int kTwos, typename Values>
PB_INLINE void add_small_batch_strip(const Values& values, const float* probabilities, int stride,
                                     int column, float* out, int out_stride) {
  constexpr int kVectors = 2 * kTwos;
  Vec sum[kQueries][kVectors] = {};
  const int end_chunk = (values.keys.end + kChunk - 1) / kChunk;
  for (int chunk = values.keys.begin / kChunk; chunk < end_chunk; ++chunk) {
    const uint16_t* rows[kChunk];
    ptrdiff_t ahead[2];
    values.chunk(chunk * kChunk, rows, ahead);
    Vec halves[2][kQueries][kVectors] = {};
    // One half follows the other, so that memory is read in ascending order and the registers
    // suffice.
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      for (int i = half * kWidth; i < (half + 1) * kWidth; ++i) {
        Vec value[kVectors];
#pragma GCC unroll 4
        for (int t = 0; t < kTwos; ++t) {
          const uint16_t* two = rows[i] + column + t * kChunk;
          prefetch_piece<64>(two, t, ahead[half]);
          const Pairs pairs = load_pairs(two);
          value[2 * t] = even(pairs);
          value[2 * t + 1] = odd(pairs);
        }
#pragma GCC unroll 2
        for (int q = 0; q < kQueries; ++q) {
          const Vec p = set1(probabilities[q * stride + chunk * kChunk + i]);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) {
            halves[half][q][v] = mul_add(value[v], p, halves[half][q][v]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[q][v] = add(sum[q][v], add(halves[0][q][v], halves[1][q][v]));
      }
    }
  }
#pragma GCC unroll 2
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(out + q * out_stride + column + v * kWidth, sum[q][v]);
  }
}

// Adds the values of all columns, strip by strip.
template <int kQueries, typename Values>
inline void add_small_batch(const Values& values, const float* probabilities, int stride,
                            float* out) {
  const KvLayout& kv = values.args.layout;
  int column = 0;
  for (; column + 4 * kChunk <= kv.head_dim; column += 4 * kChunk) {
    add_small_batch_strip<kQueries, 4>(values, probabilities, stride, column, out, kv.value_stride);
  }
  for (; column + 2 * kChunk <= kv.head_dim; column += 2 * kChunk) {
    add_small_batch_strip<kQueries, 2>(values, probabilities, stride, column, out, kv.value_stride);
  }
  if (column < kv.head_dim) {
    add_small_batch_strip<kQueries, 1>(values, probabilities, stride, column, out, kv.value_stride);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
