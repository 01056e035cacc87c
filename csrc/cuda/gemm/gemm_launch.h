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

// A kernel and how it cuts a product.
struct GemmKernel {
  const char* name;
  DType weights;
  int rows;     // of a tile
  int columns;  // of a tile
  unsigned threads;
  size_t shared_bytes;
  bool has_maps = false;     // takes TmaGemmParams: its tiles are copied by tensor maps
  bool takes_turns = false;  // its blocks take tiles in turn, however many blocks there are
};

// Every kernel there is for weights of a dtype, those for the fewest rows first.
std::span<const GemmKernel> gemm_kernels(DType weights);

// The kernel for many rows that only code for sm_90a has; weights: not kF32.
const GemmKernel& wgmma_kernel(DType weights);

// The same with tiles copied by tensor maps. Where there are none, wgmma_kernel() takes its place:
// the bits are the same.
const GemmKernel& tma_kernel(DType weights);

struct GemmChoice {
  const GemmKernel* kernel;
  bool splits_k;        // a block a segment of k, and a second launch that adds them
  int most_blocks = 0;  // of a segment, for a kernel that takes_turns; 0: a block a tile
  // Quantised weights of so many columns at a time become bf16 in scratch memory, and are
  // multiplied by `kernel`, which is of bf16; 0: a kernel of their own dtype expands them in its
  // tiles.
  int expanded_columns = 0;
};

// What a choice has to know of a GPU and its code.
struct GemmDevice {
  int n_sms;
  bool has_wgmma = false;  // its architecture is sm_90a
  bool has_tma = false;    // the same, and products may take tensor maps
};
GemmChoice choose_gemm(const GemmSizes& sizes, const GemmDevice& device);

// Bytes of the scratch memory that the launches of a choice need.
size_t gemm_scratch_bytes(const GemmSizes& sizes, const GemmChoice& choice);

// Device memory of a product.
struct GemmOperands {
  const void* x = nullptr;  // (n_rows, x_stride) bf16; f32 with f32 weights; zero from n_in on
  int x_stride = 0;         // n_in rounded up to 16
  WeightPointers w = {};
  float* y = nullptr;        // (n_rows, y_stride), of which the first n_out columns
  float* scratch = nullptr;  // gemm_scratch_bytes
  int y_stride = 0;          // 0: n_out
};

struct GemmLaunches {
  Launch<GemmParams> product;
  std::optional<Launch<GemmFinishParams>> finish;  // after it, in the same stream
};

// Of a choice without expanded_columns.
GemmLaunches gemm_launches(const GemmSizes& sizes, const GemmChoice& choice,
                           const GemmOperands& operands, Store store);

// What the maps of a kernel that has_maps are made of; w: null where it is not bf16.
struct GemmTiles {
  TiledMatrix x;
  TiledMatrix w;
};
GemmTiles gemm_tiles(const GemmSizes& sizes, const GemmOperands& operands);

// The launch of such a kernel, as gemm_launches gave it, with its maps.
Launch<TmaGemmParams> with_maps(const Launch<GemmParams>& product, const TensorMap& x,
                                const TensorMap& w);

// scratch (n_columns, k_padded) in bf16 = columns of w from `first` on.
Launch<ExpandWeightsParams> expand_launch(const WeightLayout& layout, const WeightPointers& w,
                                          int first, int n_columns, void* scratch);

// Launches a product. One by tensor maps, which are made here, is by wgmma_kernel() where the
// driver makes none.
void launch_gemm(Device& device, const GemmSizes& sizes, GemmChoice choice,
                 const GemmOperands& operands, Store store);

// x[r] = table[ids[r]] * scale, or x[r] += table[ids[r]].  ids (n_rows), x (n_rows, n_in) f32, both
// in device memory
Launch<GatherParams> gather_launch(const WeightLayout& table, const WeightPointers& pointers,
                                   const int32_t* ids, int n_rows, float* x, Store store,
                                   float scale = 1.0f);

}  // namespace pb::cuda
