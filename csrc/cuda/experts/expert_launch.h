// Launches of mixtures of experts: how pairs are cut into tiles, which kernel multiplies them, and
// all launches, as values. No choice changes the bits of a result.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/driver/launch.h"
#include "cuda/experts/params_experts.h"
#include "cuda/gemm/gemm_launch.h"
#include "formats/dtype.h"

namespace pb::cuda {

// The number of pairs of a pass.
struct PairSizes {
  int n_rows;
  int n_experts;
  int n_per_row;

  int n_pairs() const { return n_rows * n_per_row; }
};

// Returns the rows of a pass's tiles: twice the average number of rows of an expert, limited to the
// tile sizes of kernels.
int expert_tile_rows(const PairSizes& pairs, const GemmDevice& device);

// Returns the greatest possible number of tiles, for any routing of the rows.
int most_expert_tiles(const PairSizes& pairs, int tile_rows);

// Returns the bytes of an ExpertTiles for passes of at most this size.
size_t expert_tiles_bytes(const PairSizes& most);

// The choice of experts, followed by the numbering of the pairs.
Launch<RouteParams> route_launch(int n_rows, const RouteParams& params);
Launch<NumberPairsParams> number_pairs_launch(const NumberPairsParams& params);

Launch<GatherPairsParams> gather_pairs_launch(int n_rows, const GatherPairsParams& params);
Launch<CombinePairsParams> combine_pairs_launch(int n_rows, const CombinePairsParams& params);
Launch<AddSharedParams> add_shared_launch(int n_rows, const AddSharedParams& params);
// out_dtype is kF32 or kBF16.
Launch<ClampedSwigluParams> clamped_swiglu_launch(DType out_dtype, int n_pairs,
                                                  const ClampedSwigluParams& params);

// Returns the kernels for weights of a dtype (not kF16), fewest rows first: the GemmKernels of
// plain products with the names of the kernels for experts.
std::vector<GemmKernel> expert_kernels(DType weights, const GemmDevice& device);

// Returns the kernel with tiles of expert_tile_rows rows; for f32, tiles may have any number of
// rows.
GemmKernel choose_expert_kernel(const PairSizes& pairs, int n_out, DType weights,
                                const GemmDevice& device);

// The device memory of a product of experts, as in ExpertGemmParams.
struct ExpertOperands {
  const void* x;
  int x_stride;
  const ExpertWeight* weights;
  const ExpertTiles* tiles;  // tiles of tile_rows rows
  int tile_rows;
  float* y;
};
// `matrix` is the layout of each expert's weights.
Launch<ExpertGemmParams> expert_gemm_launch(const PairSizes& pairs, const WeightLayout& matrix,
                                            const GemmKernel& kernel,
                                            const ExpertOperands& operands);

}  // namespace pb::cuda
