// Matrix products for many rows on Hopper whose tiles are copied by tensor maps (tma.h). The order
// of sums, and so the bits, are those of gemm_wgmma.cuh.
#pragma once

#include "cuda/device_code/ring.cuh"
#include "cuda/gemm/gemm_wgmma.cuh"

namespace pb::cuda {
namespace {

#ifdef PB_HAS_WGMMA

static_assert(kTmaBarriersBytes % kWgmmaAlignment == 0);
constexpr unsigned kWgmmaWarps = kWgmmaThreads / 32;

// Registers per thread. A block starts with 168 for each thread, the maximum for 384 threads.
constexpr int kCopyingRegisters = 24;
constexpr int kMultiplyingRegisters = 240;
static_assert(kMultiplyingRegisters * kWgmmaThreads +
                  kCopyingRegisters * (kTmaThreads - kWgmmaThreads) <=
              168 * kTmaThreads);

// The position of output tile `number` of (n_rows, n_columns) tiles. Tiles are ordered in groups of
// kRowTiles rows of tiles, so that x of a group stays in the L2 cache for all columns of w.
struct OutputTile {
  static constexpr int kRowTiles = 16;  // rows of tiles per group
  int row;
  int column;

  __device__ __forceinline__ OutputTile(int number, int n_rows, int n_columns) {
    const int first = number / (kRowTiles * n_columns) * kRowTiles;
    const int n = n_rows - first < kRowTiles ? n_rows - first : kRowTiles;
    const int in_group = number - first * n_columns;
    row = (first + in_group % n) * kWgmmaTile;
    column = in_group / n * kWgmmaTile;
  }
};

// Multiplies by bf16 weights. Blocks take output tiles in turn: while the sums of one tile are
// stored, the stages of the next one are copied. A stage has two barriers: `full` completes when
// its tiles have been copied, `empty` when the multiplying warps no longer read them. One thread
// fills stages as they become empty, and two warpgroups multiply. The products of a stage are under
// way while those of the next stage are issued, so that a stage is released one stage later.
__device__ __forceinline__ void gemm_tma(const TmaGemmParams& params) {
  const GemmParams& p = params.product;
  SharedArrays shared;
  unsigned char* const x_stages = take_tiles(shared, kTmaStages * kWgmmaTileBytes);
  unsigned char* const w_stages = take_tiles(shared, kTmaStages * kWgmmaTileBytes);
  uint64_t* const full = shared.take<uint64_t>(kTmaStages, 8);
  uint64_t* const empty = shared.take<uint64_t>(kTmaStages, 8);
  const int n_rows = (p.n_rows + kWgmmaTile - 1) / kWgmmaTile;
  const int n_columns = (p.n_out + kWgmmaTile - 1) / kWgmmaTile;
  const int n_outputs = n_rows * n_columns;
  const int first_output = static_cast<int>(blockIdx.x);
  const int n_blocks = static_cast<int>(gridDim.x);
  const KTiles<kStepK> k(p);
  const bool copies = threadIdx.x == kWgmmaThreads;
  if (copies) {
    prefetch(params.x);
    prefetch(params.w);
    for (int i = 0; i < kTmaStages; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, kWgmmaWarps);
    }
    fence_for_async_proxy();
  }
  __syncthreads();

  if (threadIdx.x >= kWgmmaThreads) {
    set_registers<kCopyingRegisters, true>();
    if (!copies) return;
    RingPlace<kTmaStages> at;
    for (int number = first_output; number < n_outputs; number += n_blocks) {
      const OutputTile output(number, n_rows, n_columns);
      for (int tile = k.first; tile < k.end; ++tile) {
        mbarrier_wait(empty + at.stage, at.parity ^ 1);  // returns at once in the first phase
        mbarrier_arrive_expect(full + at.stage, 2 * kWgmmaTileBytes);
        tma_copy(x_stages + at.stage * kWgmmaTileBytes, params.x, tile * kStepK, output.row,
                 full + at.stage);
        tma_copy(w_stages + at.stage * kWgmmaTileBytes, params.w, tile * kStepK, output.column,
                 full + at.stage);
        at.advance();
      }
    }
    return;
  }

  set_registers<kMultiplyingRegisters, false>();
  const int group_row = static_cast<int>(threadIdx.x) / 128 * 64;
  float sums[64];
  float segment[64] = {};
  RingPlace<kTmaStages> at;
  RingPlace<kTmaStages> to_give_back;
  const auto give_back = [&] {
    __syncwarp();  // all lanes have waited for the products of that stage
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + to_give_back.stage);
    to_give_back.advance();
  };
  for (int number = first_output; number < n_outputs; number += n_blocks) {
    for (int first = k.first; first < k.end; first += k.kInSegment) {
      const int end = first + k.kInSegment < k.end ? first + k.kInSegment : k.end;
      for (int tile = first; tile < end; ++tile) {
        mbarrier_wait(full + at.stage, at.parity);
        multiply_by_wgmma(segment,
                          x_stages + at.stage * kWgmmaTileBytes + group_row * kStageRowBytes,
                          w_stages + at.stage * kWgmmaTileBytes);
        wgmma_wait<1>(segment);
        if (tile > k.first) give_back();
        at.advance();
      }
      wgmma_wait<0>(segment);
      end_segment(sums, segment, first == k.first);
    }
    give_back();
    const OutputTile output(number, n_rows, n_columns);
    put_accumulators(p, output.row + group_row, output.column, sums);
  }
}

// Tiles of x that one thread copies; each stage has a barrier. A stage is filled again after the
// __syncthreads that follows its products.
class MappedX {
 public:
  // All threads call this. Takes shared memory for tiles; barriers (kGemmStages) are initialised
  // and visible to all.
  __device__ __forceinline__ MappedX(const TensorMap& map, unsigned char* stages,
                                     uint64_t* barriers, int row)
      : map_(map), stages_(stages), barriers_(barriers), row_(row) {}

  __device__ __forceinline__ void copy(int i, int tile) const {
    if (threadIdx.x != 0) return;
    uint64_t* const barrier = barriers_ + i % kGemmStages;
    mbarrier_arrive_expect(barrier, kWgmmaTileBytes);
    tma_copy(stage(i), map_, tile * kStepK, row_, barrier);
  }
  __device__ __forceinline__ void wait(int i) const {
    mbarrier_wait(barriers_ + i % kGemmStages, static_cast<unsigned>(i / kGemmStages) & 1);
  }
  __device__ __forceinline__ unsigned char* stage(int i) const {
    return stages_ + i % kGemmStages * kWgmmaTileBytes;
  }

 private:
  const TensorMap& map_;
  unsigned char* stages_;
  uint64_t* barriers_;
  int row_;
};

// Multiplies by quantised weights: x is copied by a map, and the weights by cp.async, because all
// threads expand them.
template <typename Format>
__device__ __forceinline__ void gemm_tma_expanded(const TmaGemmParams& params) {
  SharedArrays shared;
  unsigned char* const stages = take_tiles(shared, kGemmStages * kWgmmaTileBytes);
  uint64_t* const barriers = shared.take<uint64_t>(kGemmStages, 8);
  if (threadIdx.x == 0) {
    prefetch(params.x);
    for (int i = 0; i < kGemmStages; ++i) mbarrier_init(barriers + i, 1);
    fence_for_async_proxy();
  }
  __syncthreads();
  const auto n_rows = static_cast<int>(gridDim.x);
  const OutputTile output(static_cast<int>(blockIdx.y) * n_rows + static_cast<int>(blockIdx.x),
                          n_rows, static_cast<int>(gridDim.y));
  const MappedX x(params.x, stages, barriers, output.row);
  gemm_wgmma_tiles<ExpandedTiles<Format, kWgmmaTile, kWgmmaThreads>>(params.product, shared, x,
                                                                     output.row, output.column);
}

#elif defined(__CUDA_ARCH__)
// Not compiled for this architecture. The kernels trap, so that a wrong launch fails instead of
// leaving the output unwritten.
__device__ __forceinline__ void gemm_tma(const TmaGemmParams&) { __trap(); }
template <typename Format>
__device__ __forceinline__ void gemm_tma_expanded(const TmaGemmParams&) {
  __trap();
}
#else  // nvcc's host pass
__device__ __forceinline__ void gemm_tma(const TmaGemmParams&) {}
template <typename Format>
__device__ __forceinline__ void gemm_tma_expanded(const TmaGemmParams&) {}
#endif

PB_LARGE_KERNEL(gemm_bf16_tma, TmaGemmParams, kTmaThreads) { gemm_tma(p); }

}  // namespace
}  // namespace pb::cuda
