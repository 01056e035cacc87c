#include "cuda/experts/expert_launch.h"

#include <algorithm>
#include <array>
#include <span>

#include "cuda/rows/params_rows.h"

namespace pb::cuda {
namespace {

// The rows per tile of the kernels on mma.sync; kernels on wgmma have kWgmmaTile.
constexpr std::array kTileRows = {8, 32, 64};

// The names of kernels by rows per tile.
struct ExpertKernelNames {
  DType weights;
  std::array<const char*, kTileRows.size()> mma;
  const char* wgmma;
};
#define PB_NAMES(constant, name, Format)                                             \
  {DType::constant,                                                                  \
   {"experts_" #name "_few8", "experts_" #name "_few32", "experts_" #name "_64x64"}, \
   "experts_" #name "_wgmma"},
constexpr ExpertKernelNames kNames[] = {PB_NAMES(kBF16, bf16, Bf16) PB_CUDA_FORMATS(PB_NAMES)};
#undef PB_NAMES

// The least number of blocks per multiprocessor, as in products of few rows.
constexpr int64_t kBlocksPerSm = 2;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

GemmKernel named(GemmKernel kernel, const char* name) {
  kernel.name = name;
  return kernel;
}

// Calls visit(kernel) for each kernel of a dtype, ordered by rows and then by columns.
template <typename Visit>
void for_each_kernel(DType weights, const GemmDevice& device, Visit visit) {
  const std::span<const GemmKernel> plain = gemm_kernels(weights);
  if (weights == DType::kF32) return visit(named(plain.front(), "experts_f32"));
  const auto& names = *std::ranges::find(kNames, weights, &ExpertKernelNames::weights);
  for (size_t i = 0; i < kTileRows.size(); ++i) {
    for (const GemmKernel& kernel : plain) {
      if (kernel.rows == kTileRows[i]) visit(named(kernel, names.mma[i]));
    }
  }
  if (device.has_wgmma) visit(named(wgmma_kernel(weights), names.wgmma));
}

}  // namespace

int expert_tile_rows(const PairSizes& pairs, const GemmDevice& device) {
  const auto* const found = std::ranges::find_if(kTileRows, [&](int rows) {
    return 2 * int64_t{pairs.n_pairs()} <= int64_t{rows} * pairs.n_experts;
  });
  if (found != kTileRows.end()) return *found;
  return device.has_wgmma ? kWgmmaTile : kTileRows.back();
}

// Each expert with pairs may have one tile with a single pair; all other tiles are full.
int most_expert_tiles(const PairSizes& pairs, int tile_rows) {
  const int64_t n_pairs = pairs.n_pairs();
  const int64_t with_pairs = std::min<int64_t>(n_pairs, pairs.n_experts);
  return static_cast<int>((n_pairs + with_pairs * (tile_rows - 1)) / tile_rows);
}

size_t expert_tiles_bytes(const PairSizes& most) {
  return sizeof(ExpertTiles) + sizeof(ExpertTile) * most_expert_tiles(most, kTileRows.front());
}

Launch<RouteParams> route_launch(int n_rows, const RouteParams& params) {
  return {"route_rows", {.x = static_cast<unsigned>(n_rows)}, 32, 0, params};
}

Launch<NumberPairsParams> number_pairs_launch(const NumberPairsParams& params) {
  const auto n_experts = static_cast<unsigned>(params.n_experts);
  return {"number_pairs", {.x = n_experts}, kNumberPairsThreads, n_experts * sizeof(int), params};
}

Launch<GatherPairsParams> gather_pairs_launch(int n_rows, const GatherPairsParams& params) {
  const auto parts = static_cast<unsigned>(ceil_div(params.row_bytes, 16 * kGatherPairsThreads));
  return {"gather_pairs",
          {.x = static_cast<unsigned>(n_rows), .y = parts},
          kGatherPairsThreads,
          0,
          params};
}

Launch<CombinePairsParams> combine_pairs_launch(int n_rows, const CombinePairsParams& params) {
  const auto parts = static_cast<unsigned>(ceil_div(params.hidden, kCombinePairsThreads));
  return {"combine_pairs",
          {.x = static_cast<unsigned>(n_rows), .y = parts},
          kCombinePairsThreads,
          0,
          params};
}

Launch<AddSharedParams> add_shared_launch(int n_rows, const AddSharedParams& params) {
  const auto parts = static_cast<unsigned>(ceil_div(params.hidden, kCombinePairsThreads));
  return {"add_shared",
          {.x = static_cast<unsigned>(n_rows), .y = parts},
          kCombinePairsThreads,
          0,
          params};
}

Launch<ClampedSwigluParams> clamped_swiglu_launch(DType out_dtype, int n_pairs,
                                                  const ClampedSwigluParams& params) {
  constexpr auto kPerBlock = static_cast<int64_t>(kActivateThreads) * kActivatedPerThread;
  return {out_dtype == DType::kF32 ? "clamped_swiglu_f32" : "clamped_swiglu_bf16",
          {.x = static_cast<unsigned>(n_pairs),
           .y = static_cast<unsigned>((params.row_stride + kPerBlock - 1) / kPerBlock)},
          kActivateThreads,
          0,
          params};
}

std::vector<GemmKernel> expert_kernels(DType weights, const GemmDevice& device) {
  std::vector<GemmKernel> kernels;
  for_each_kernel(weights, device, [&](const GemmKernel& kernel) { kernels.push_back(kernel); });
  return kernels;
}

// Returns the kernel with the widest tiles, of tile_rows rows, that keeps all multiprocessors busy,
// or else the narrowest one.
GemmKernel choose_expert_kernel(const PairSizes& pairs, int n_out, DType weights,
                                const GemmDevice& device) {
  const int tile_rows = expert_tile_rows(pairs, device);
  const int64_t least_tiles = std::max(pairs.n_per_row, ceil_div(pairs.n_pairs(), tile_rows));
  GemmKernel best{};
  for_each_kernel(weights, device, [&](const GemmKernel& kernel) {
    if (kernel.rows != tile_rows && weights != DType::kF32) return;
    const int64_t n_blocks = least_tiles * ceil_div(n_out, kernel.columns);
    if (best.name == nullptr || n_blocks >= kBlocksPerSm * device.n_sms) best = kernel;
  });
  return best;
}

Launch<ExpertGemmParams> expert_gemm_launch(const PairSizes& pairs, const WeightLayout& matrix,
                                            const GemmKernel& kernel,
                                            const ExpertOperands& operands) {
  return {.kernel = kernel.name,
          .grid = {static_cast<unsigned>(most_expert_tiles(pairs, operands.tile_rows)),
                   static_cast<unsigned>(ceil_div(matrix.n_out, kernel.columns)),
                   static_cast<unsigned>(ceil_div(operands.tile_rows, kernel.rows))},
          .threads = kernel.threads,
          .shared_bytes = kernel.shared_bytes,
          .params = {.x = operands.x,
                     .weights = operands.weights,
                     .tiles = operands.tiles,
                     .y = operands.y,
                     .n_out = matrix.n_out,
                     .x_stride = operands.x_stride,
                     .k_padded = matrix.k_padded,
                     .scale_stride = matrix.scale_stride}};
}

}  // namespace pb::cuda
