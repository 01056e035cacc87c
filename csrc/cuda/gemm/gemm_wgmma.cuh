// Matrix products for many rows on Hopper's wgmma, with the tiles and the pipeline of gemm.cuh and
// its order of sums: 16 numbers of k at a time, ascending, restarted at the same segments.
// According to models of both instructions (arXiv:2511.10909), wgmma has the bits of mma.sync.
#pragma once

#include "cuda/device_code/wgmma.h"
#include "cuda/gemm/gemm_quantised.cuh"

namespace pb::cuda {
namespace {

static_assert(kTileAlignment % kWgmmaAlignment == 0);
constexpr int kWgmmaTileBytes = kWgmmaTile * kStageRowBytes;

#ifdef PB_HAS_WGMMA

// Tiles of x that all threads of the block copy, in the same groups of cp.async as the tiles of w.
class CopiedX {
 public:
  __device__ __forceinline__ CopiedX(const GemmParams& p, SharedArrays& shared, int row)
      : from_{static_cast<const unsigned char*>(p.x), p.n_rows, p.x_stride * 2},
        row_(row),
        stages_(take_tiles(shared, kGemmStages * kWgmmaTileBytes)) {}

  // Issues the copy of stage i, which contains tile `tile` of k.
  __device__ __forceinline__ void copy(int i, int tile) const {
    copy_rows<kStageRowBytes>(stage(i), kWgmmaTile, from_, row_, tile * kStageRowBytes,
                              kWgmmaThreads);
  }
  __device__ __forceinline__ void wait(int) const {}  // cp_async_wait has waited
  __device__ __forceinline__ unsigned char* stage(int i) const {
    return stages_ + i % kGemmStages * kWgmmaTileBytes;
  }

 private:
  ByteRows from_;
  int row_;
  unsigned char* stages_;
};

// Adds pairs of sums to y. Loads are issued in batches, because a single load would wait for the
// previous store.
__device__ __forceinline__ void add_accumulators(const GemmParams& p, int row, int column,
                                                 const float (&sums)[64]) {
  constexpr int kAtOnce = 16;  // pairs
  const auto place = [&](int pair) {
    return p.y + static_cast<size_t>(row + pair % 2 * 8) * p.y_stride + column + pair / 2 * 8;
  };
  const auto is_there = [&](int pair) {
    return row + pair % 2 * 8 < p.n_rows && column + pair / 2 * 8 < p.n_out;
  };
#pragma unroll
  for (int first = 0; first < 32; first += kAtOnce) {
    float2 before[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (is_there(first + i)) before[i] = *reinterpret_cast<const float2*>(place(first + i));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = first + i;
      if (!is_there(pair)) continue;
      float2 sum = make_float2(sums[2 * pair], sums[2 * pair + 1]);
      if (p.bias != nullptr) {
        sum.x += p.bias[column + pair / 2 * 8];
        sum.y += p.bias[column + pair / 2 * 8 + 1];
      }
      *reinterpret_cast<float2*>(place(pair)) =
          make_float2(before[i].x + sum.x, before[i].y + sum.y);
    }
  }
}

// Stores a thread's accumulators; `row` is the first row of its warpgroup.
__device__ __forceinline__ void put_accumulators(const GemmParams& p, int row, int column,
                                                 const float (&sums)[64]) {
  const int t = static_cast<int>(threadIdx.x) % 128;
  row += t / 32 * 16 + t % 32 / 4;
  column += t % 4 * 2;
  const bool in_pairs =
      (p.n_out | p.y_stride) % 2 == 0 && reinterpret_cast<uintptr_t>(p.y) % 8 == 0;
  if (p.adds && p.partial == nullptr && in_pairs) {
    add_accumulators(p, row, column, sums);
    return;
  }
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    put_sums(p, row + i / 2 % 2 * 8, column + i / 4 * 8, sums[i], sums[i + 1]);
  }
}

// Issues the products of a stage: 64 rows of x from a on by the columns of w from b on.
__device__ __forceinline__ void multiply_by_wgmma(float (&segment)[64], const unsigned char* a,
                                                  const unsigned char* b) {
  wgmma_fence(segment);
#pragma unroll
  for (int byte = 0; byte < kStageRowBytes; byte += 32) {
    wgmma_m64n128k16(segment, wgmma_operand(a + byte), wgmma_operand(b + byte));
  }
  wgmma_commit();
}

// A block has kWgmmaTile rows and columns: two warpgroups of 64 rows each. The grid is tiles of
// rows, by tiles of columns, by segments (one if sums go to y). `Tiles` is PlainTiles or
// ExpandedTiles, with kWgmmaTile columns. `X` is CopiedX, or MappedX of gemm_tma.cuh. row and
// column are the first ones of the block's tile.
template <typename Tiles, typename X>
__device__ __forceinline__ void gemm_wgmma_tiles(const GemmParams& p, SharedArrays& shared,
                                                 const X& x, int row, int column) {
  const int group_row = static_cast<int>(threadIdx.x) / 128 * 64;
  const KTiles<kStepK> k(p);
  const auto copy_x = [&](int i) { x.copy(i, k.first + i); };
  Tiles w(p, shared, column);

  float sums[64];
  float segment[64] = {};
  w.start(k.first, k.end, copy_x);
  for (int i = 0; k.first + i < k.end; ++i) {
    x.wait(i);
    cp_async_wait<kGemmStages - 2>();
    fence_for_async_proxy();
    __syncthreads();  // stage i is complete, and no thread multiplies the stage that is filled next
    multiply_by_wgmma(segment, x.stage(i) + group_row * kStageRowBytes, w.stage(i));
    if (k.first + i + kGemmStages - 1 < k.end) copy_x(i + kGemmStages - 1);
    w.advance(i, k.first, k.end);
    cp_async_commit();
    wgmma_wait<0>(segment);
    if (k.ends_segment(k.first + i)) {
      end_segment(sums, segment, k.is_first_segment(k.first + i));
    }
  }
  cp_async_wait<0>();
  put_accumulators(p, row + group_row, column, sums);
}

#endif  // PB_HAS_WGMMA

// Multiplies with every tile copied by cp.async.
template <typename Tiles>
__device__ __forceinline__ void gemm_wgmma(const GemmParams& p,
                                           int row = row_of_block(kWgmmaTile)) {
#ifdef PB_HAS_WGMMA
  SharedArrays shared;
  const CopiedX x(p, shared, row);
  gemm_wgmma_tiles<Tiles>(p, shared, x, row, static_cast<int>(blockIdx.y) * kWgmmaTile);
#elif defined(__CUDA_ARCH__)
  __trap();  // not compiled for this architecture: a wrong launch fails
#endif
}

PB_KERNEL(gemm_bf16_wgmma, GemmParams, kWgmmaThreads) {
  gemm_wgmma<PlainTiles<kWgmmaTile, kWgmmaThreads>>(p);
}

}  // namespace
}  // namespace pb::cuda
