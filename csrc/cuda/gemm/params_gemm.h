// Parameters and tile sizes of the matrix products, for kernels and host.
//
// One arithmetic for all kernels of a dtype. Of weights that are not f32, each as its value in
// bf16, an output is the sum of its segments of kSegmentK, added in ascending order in f32; a
// segment is a chain of mma m16n8k16 from zero, k ascending by 16, over whole steps of kStepK: what
// lies beyond k_padded is zero. Of f32 weights a segment is a chain of fused multiply-adds, k
// ascending to k_padded. Then the bias is added, then what is in y.
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
  const void* w;           // values (n_out, k_padded), as weight_formats.h has them
  const uint16_t* scales;  // (n_out, scale_stride) pairs of bytes; null with bf16 and f32
  const float* bias;       // (n_out), or null
  float* y;                // (n_rows, y_stride), of which n_out columns
  float* partial;          // (n_segments, n_rows, n_out): takes the segments' sums; null: y does
  int n_rows;
  int n_out;
  int x_stride;      // a multiple of 16, not above k_padded
  int k_padded;      // a multiple of 32
  int scale_stride;  // a multiple of 8: rows of scales begin on 16 bytes
  int y_stride;
  bool adds;  // y += instead of y =
};

// A product of which tiles are copied by maps: boxes of kWgmmaTile rows and kStepK numbers.
struct TmaGemmParams {
  TensorMap x;  // (n_rows, x_stride)
  TensorMap w;  // (n_out, k_padded) of bf16 weights; of others not read
  GemmParams product;
};

// y (=|+=) the sum of the segments + bias.
struct GemmFinishParams {
  const float* partial;  // (n_segments, n_rows, n_out)
  const float* bias;     // (n_out), or null
  float* y;              // (n_rows, y_stride), of which n_out columns
  int n_out;
  int y_stride;
  int n_segments;
  bool adds;
};
inline constexpr int kFinishThreads = 128;
inline constexpr int kFinishedPerThread = 4;

// out (n_out, k_padded) in bf16 = quantised weights.
struct ExpandWeightsParams {
  const void* w;  // as in GemmParams, as what follows
  const uint16_t* scales;
  void* out;
  int n_out;
  int k_padded;
  int scale_stride;
};
inline constexpr int kExpandThreads = 256;

// -- tiles ----------------------------------------------------------------------------------------

// Bytes of shared memory that a block may have on every architecture (sm_89 has the fewest).
inline constexpr size_t kMostSharedBytes = size_t{99} << 10;

// Kernels for many rows (gemm.cuh): stages of cp.async, each kStepK wide. kBits: of a weight.
inline constexpr int kGemmStages = 3;
template <int kBits, int kRows, int kColumns>
inline constexpr size_t kGemmSharedBytes =
    size_t{kGemmStages} * kRows * kStepK * 2 +
    (kBits == 16 ? size_t{kGemmStages} * kColumns * kStepK * 2
                 : size_t{2} * kColumns * kStepK * 2 +
                       size_t{kGemmStages - 1} * kColumns * kStepK * kBits / 8);

// Kernels for few rows (gemm_few.cuh): 16 columns a warp, at most 4 warps.
inline constexpr int kFewWarps = 4;
template <typename Format, int kRows>
struct FewTile {
  static constexpr int kTileK = Format::kBits == 16 ? 128 : kScaleTile;
  static constexpr int kWRowBytes = kTileK * Format::kBits / 8;
  static constexpr int kXRowBytes = kTileK * 2;
  static constexpr int kScaleBytes = Format::kTileScaleBytes;  // of a column
  static constexpr size_t kXBytes = size_t{kRows} * kXRowBytes;
  static constexpr size_t kColumnBytes = kWRowBytes + kScaleBytes;
  static constexpr int kStages =
      4 * (kXBytes + 16 * kFewWarps * kColumnBytes) <= kMostSharedBytes ? 4 : 3;
};

// Those of sm_90a (gemm_wgmma.cuh), in the same stages.
inline constexpr int kWgmmaTile = 128;  // rows, and columns
inline constexpr int kWgmmaThreads = 256;

// Those whose tiles are copied by tensor maps (gemm_tma.cuh). Of bf16 weights: a warpgroup
// that has tiles copied, for only whole ones can hand registers on, and as many stages as the
// shared memory of sm_90a takes of one block; accumulators leave no registers for a second one. Of
// others: the stages of gemm.cuh, and between those of x and of w, which begin on
// kTmaBarriersBytes, their barriers.
inline constexpr int kTmaThreads = kWgmmaThreads + 128;
inline constexpr int kTmaStages = 6;
inline constexpr size_t kTmaBarriersBytes = 1024;
inline constexpr size_t kMostSharedBytesOfHopper = size_t{227} << 10;
template <int kBits>
inline constexpr size_t kTmaSharedBytes =
    kBits == 16 ? kTmaStages * (size_t{2} * kWgmmaTile * kStepK * 2 + 2 * sizeof(uint64_t))
                : kGemmSharedBytes<kBits, kWgmmaTile, kWgmmaTile> + kTmaBarriersBytes;

// The kernel of f32 weights (gemm_f32.cuh).
inline constexpr int kF32Rows = 32;
inline constexpr int kF32Columns = 64;
inline constexpr int kF32TileK = 32;
inline constexpr int kF32Pitch =
    kF32TileK + 4;  // of a row in shared memory, free of bank conflicts
inline constexpr int kF32Threads = 128;
inline constexpr size_t kF32SharedBytes =
    sizeof(float) * kGemmStages * (kF32Rows + kF32Columns) * kF32Pitch;

}  // namespace pb::cuda
