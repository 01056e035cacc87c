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

// The pairs of a pass.
struct PairSizes {
  int n_rows;
  int n_experts;
  int n_per_row;

  int n_pairs() const { return n_rows * n_per_row; }
};

// Rows of the tiles that a pass's pairs are cut into: twice what an expert has on average, or as
// many as kernels have.
int expert_tile_rows(const PairSizes& pairs, const GemmDevice& device);

// How many tiles there are at most, whichever experts the rows go to.
int most_expert_tiles(const PairSizes& pairs, int tile_rows);

// Bytes of an ExpertTiles for passes of up to so many rows.
size_t expert_tiles_bytes(const PairSizes& most);

// The choice of experts, then the numbers of the pairs.
Launch<RouteParams> route_launch(int n_rows, const RouteParams& params);
Launch<NumberPairsParams> number_pairs_launch(const NumberPairsParams& params);

Launch<GatherPairsParams> gather_pairs_launch(int n_rows, const GatherPairsParams& params);
Launch<CombinePairsParams> combine_pairs_launch(int n_rows, const CombinePairsParams& params);
Launch<AddSharedParams> add_shared_launch(int n_rows, const AddSharedParams& params);
// out_dtype: kF32, or kBF16.
Launch<ClampedSwigluParams> clamped_swiglu_launch(DType out_dtype, int n_pairs,
                                                  const ClampedSwigluParams& params);

// The kernels of weights of a dtype (not kF16), those with the fewest rows first: what GemmKernel
// says, under the names of experts' products.
std::vector<GemmKernel> expert_kernels(DType weights, const GemmDevice& device);

// One of them, with expert_tile_rows; of f32, any number of rows.
GemmKernel choose_expert_kernel(const PairSizes& pairs, int n_out, DType weights,
                                const GemmDevice& device);

// Device memory of a product of experts, as ExpertGemmParams has it.
struct ExpertOperands {
  const void* x;
  int x_stride;
  const ExpertWeight* weights;
  const ExpertTiles* tiles;  // of tile_rows
  int tile_rows;
  float* y;
};
// matrix: what all experts' are.
Launch<ExpertGemmParams> expert_gemm_launch(const PairSizes& pairs, const WeightLayout& matrix,
                                            const GemmKernel& kernel,
                                            const ExpertOperands& operands);

}  // namespace pb::cuda
