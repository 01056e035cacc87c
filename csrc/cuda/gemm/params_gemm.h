// Parameters and tile sizes of the matrix products, for kernels and host.
//
// All kernels of a dtype have the same arithmetic. For weights other than f32, each number is
// converted to bf16, and an output is the sum of its segments of kSegmentK, added in ascending
// order in f32. A segment is a chain of mma m16n8k16 from zero, with k ascending by 16, over whole
// steps of kStepK: numbers beyond k_padded are zero. For f32 weights, a segment is a chain of fused
// multiply-adds with k ascending to k_padded. The bias is added next, and the old value of y last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device_code/tensor_map.h"
#include "cuda/weights/weight_formats.h"

namespace pb::cuda {

inline constexpr int kSegmentK = 2048;
inline constexpr int kStepK = 64;

// y (=|+=) x w^T + bias.
struct GemmParams {
  const void* x;           // (n_rows, x_stride), bf16; f32 with f32 weights
  const void* w;           // values (n_out, k_padded) in the layout of weight_formats.h
  const uint16_t* scales;  // (n_out, scale_stride) pairs of bytes; null for bf16 and f32
  const float* bias;       // (n_out), or null
  float* y;                // (n_rows, y_stride), of which n_out columns are used
  // (n_segments, n_rows, n_out): the segments' sums; null if y gets the sums
  float* partial;
  int n_rows;
  int n_out;
  int x_stride;      // a multiple of 16, not above k_padded
  int k_padded;      // a multiple of 32
  int scale_stride;  // a multiple of 8: rows of scales are aligned to 16 bytes
  int y_stride;
  bool adds;  // true: y += instead of y =
};

// A product whose tiles are copied by maps, with boxes of kWgmmaTile rows and kStepK numbers.
struct TmaGemmParams {
  TensorMap x;  // (n_rows, x_stride)
  TensorMap w;  // (n_out, k_padded) of bf16 weights; not used for other weights
  GemmParams product;
};

// y (=|+=) the sum of the segments + bias.
struct GemmFinishParams {
  const float* partial;  // (n_segments, n_rows, n_out)
  const float* bias;     // (n_out), or null
  float* y;              // (n_rows, y_stride), of which n_out columns are used
  int n_out;
  int y_stride;
  int n_segments;
  bool adds;
};
inline constexpr int kFinishThreads = 128;
inline constexpr int kFinishedPerThread = 4;

// out (n_out, k_padded) in bf16 = quantised weights.
struct ExpandWeightsParams {
  const void* w;  // like the following ones, as in GemmParams
  const uint16_t* scales;
  void* out;
  int n_out;
  int k_padded;
  int scale_stride;
};
inline constexpr int kExpandThreads = 256;

// -- tiles ----------------------------------------------------------------------------------------

// The shared memory that a block may have on every architecture; sm_89 has the least.
inline constexpr size_t kMostSharedBytes = size_t{99} << 10;

// The kernels for many rows (gemm.cuh) have kGemmStages stages of cp.async, each kStepK wide. kBits
// is the number of bits of a weight.
inline constexpr int kGemmStages = 3;
template <int kBits, int kRows, int kColumns>
inline constexpr size_t kGemmSharedBytes =
    size_t{kGemmStages} * kRows * kStepK * 2 +
    (kBits == 16 ? size_t{kGemmStages} * kColumns * kStepK * 2
                 : size_t{2} * kColumns * kStepK * 2 +
                       size_t{kGemmStages - 1} * kColumns * kStepK * kBits / 8);

// The kernels for few rows (gemm_few.cuh) have 16 columns per warp and at most 4 warps.
inline constexpr int kFewWarps = 4;
template <typename Format, int kRows>
struct FewTile {
  static constexpr int kTileK = Format::kBits == 16 ? 128 : kScaleTile;
  static constexpr int kWRowBytes = kTileK * Format::kBits / 8;
  static constexpr int kXRowBytes = kTileK * 2;
  static constexpr int kScaleBytes = Format::kTileScaleBytes;  // per column
  static constexpr size_t kXBytes = size_t{kRows} * kXRowBytes;
  static constexpr size_t kColumnBytes = kWRowBytes + kScaleBytes;
  static constexpr int kStages =
      4 * (kXBytes + 16 * kFewWarps * kColumnBytes) <= kMostSharedBytes ? 4 : 3;
};

// The kernels for sm_90a (gemm_wgmma.cuh) use the same stages.
inline constexpr int kWgmmaTile = 128;  // rows, and columns
inline constexpr int kWgmmaThreads = 256;

// The kernels whose tiles are copied by tensor maps (gemm_tma.cuh). For bf16 weights, a separate
// warpgroup copies tiles, because only whole warpgroups can release registers, and there are as
// many stages as fit the shared memory of one block on sm_90a; accumulators leave no registers for
// a second block. For other weights, the stages are those of gemm.cuh, and the barriers are between
// the stages of x and those of w, which are aligned to kTmaBarriersBytes.
inline constexpr int kTmaThreads = kWgmmaThreads + 128;
inline constexpr int kTmaStages = 6;
inline constexpr size_t kTmaBarriersBytes = 1024;
inline constexpr size_t kMostSharedBytesOfHopper = size_t{227} << 10;
template <int kBits>
inline constexpr size_t kTmaSharedBytes =
    kBits == 16 ? kTmaStages * (size_t{2} * kWgmmaTile * kStepK * 2 + 2 * sizeof(uint64_t))
                : kGemmSharedBytes<kBits, kWgmmaTile, kWgmmaTile> + kTmaBarriersBytes;

// The kernel for f32 weights (gemm_f32.cuh).
inline constexpr int kF32Rows = 32;
inline constexpr int kF32Columns = 64;
inline constexpr int kF32TileK = 32;
inline constexpr int kF32Pitch =
    kF32TileK + 4;  // numbers per row in shared memory, free of bank conflicts
inline constexpr int kF32Threads = 128;
inline constexpr size_t kF32SharedBytes =
    sizeof(float) * kGemmStages * (kF32Rows + kF32Columns) * kF32Pitch;

}  // namespace pb::cuda
