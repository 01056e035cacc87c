// How matrix products are launched: description (GemmSizes), choice (GemmChoice) and launches are
// separate values. The choice never changes the bits of a result.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "cuda/driver/device.h"
#include "cuda/driver/launch.h"
#include "cuda/gemm/params_embed.h"
#include "cuda/gemm/params_gemm.h"
#include "cuda/weights/pack.h"
#include "formats/dtype.h"
#include "ops/backend.h"

namespace pb::cuda {

struct GemmSizes {
  int n_rows;
  int n_out;
  int n_in;
  DType weights;  // not kF16
};

// A kernel, and the tiles into which it cuts a product.
struct GemmKernel {
  const char* name;
  DType weights;
  int rows;     // per tile
  int columns;  // per tile
  unsigned threads;
  size_t shared_bytes;
  bool has_maps = false;     // takes TmaGemmParams; tensor maps copy its tiles
  bool takes_turns = false;  // blocks take tiles in turn, for any number of blocks
};

// Returns all kernels for weights of a dtype, fewest rows first.
std::span<const GemmKernel> gemm_kernels(DType weights);

// Returns the kernel for many rows that only code for sm_90a has; weights is not kF32.
const GemmKernel& wgmma_kernel(DType weights);

// Returns the same kernel with tiles copied by tensor maps. Where maps cannot be made,
// wgmma_kernel() takes its place, with the same bits.
const GemmKernel& tma_kernel(DType weights);

struct GemmChoice {
  const GemmKernel* kernel;
  bool splits_k;        // one block per segment of k, and a second launch adds the segments
  int most_blocks = 0;  // per segment, for a kernel that takes_turns; 0: one per tile
  // If not 0, so many columns of quantised weights at a time are expanded to bf16 in scratch memory
  // and multiplied by `kernel`, a kernel for bf16. If 0, a kernel for the weights' dtype expands
  // them in its tiles.
  int expanded_columns = 0;
};

// The properties of a GPU and its code that a choice depends on.
struct GemmDevice {
  int n_sms;
  bool has_wgmma = false;  // the code is for sm_90a
  bool has_tma = false;    // the code is for sm_90a, and products may use tensor maps
};
GemmChoice choose_gemm(const GemmSizes& sizes, const GemmDevice& device);

// Returns the bytes of scratch memory that the launches of a choice need.
size_t gemm_scratch_bytes(const GemmSizes& sizes, const GemmChoice& choice);

// The device memory of a product.
struct GemmOperands {
  // (n_rows, x_stride) in bf16, or f32 with f32 weights; zero from n_in on
  const void* x = nullptr;
  int x_stride = 0;  // n_in rounded up to 16
  WeightPointers w = {};
  float* y = nullptr;        // (n_rows, y_stride), of which the first n_out columns are used
  float* scratch = nullptr;  // gemm_scratch_bytes()
  int y_stride = 0;          // 0: equal to n_out
};

struct GemmLaunches {
  Launch<GemmParams> product;
  std::optional<Launch<GemmFinishParams>> finish;  // after `product`, in the same stream
};

// Returns the launches of a choice without expanded_columns.
GemmLaunches gemm_launches(const GemmSizes& sizes, const GemmChoice& choice,
                           const GemmOperands& operands, Store store);

// The descriptions of the maps of a kernel that has_maps; w is null if the weights are not bf16.
struct GemmTiles {
  TiledMatrix x;
  TiledMatrix w;
};
GemmTiles gemm_tiles(const GemmSizes& sizes, const GemmOperands& operands);

// Adds the maps to such a kernel's launch of gemm_launches().
Launch<TmaGemmParams> with_maps(const Launch<GemmParams>& product, const TensorMap& x,
                                const TensorMap& w);

// scratch (n_columns, k_padded) in bf16 = the columns of w from `first` on.
Launch<ExpandWeightsParams> expand_launch(const WeightLayout& layout, const WeightPointers& w,
                                          int first, int n_columns, void* scratch);

// Launches a product, and makes its tensor maps if the kernel has_maps. If the driver cannot make
// them, wgmma_kernel() takes its place.
void launch_gemm(Device& device, const GemmSizes& sizes, GemmChoice choice,
                 const GemmOperands& operands, Store store);

// x[r] = table[ids[r]] * scale, or x[r] += table[ids[r]]. ids (n_rows) and x (n_rows, n_in) f32 are
// in device memory.
Launch<GatherParams> gather_launch(const WeightLayout& table, const WeightPointers& pointers,
                                   const int32_t* ids, int n_rows, float* x, Store store,
                                   float scale = 1.0f);

}  // namespace pb::cuda
