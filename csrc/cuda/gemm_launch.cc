#include "cuda/gemm_launch.h"

#include <algorithm>
#include <array>

namespace pb::cuda {
namespace {

template <int kBits, int kRows, int kColumns>
constexpr GemmKernel few(const char* name, DType weights) {
  using Tile = FewTile<kBits, kRows>;
  constexpr size_t kStage = Tile::kXBytes + kColumns * Tile::kColumnBytes;
  static_assert(Tile::kStages * kStage <= kMostSharedBytes);
  return {name, weights, kRows, kColumns, 2 * kColumns, Tile::kStages * kStage};
}

template <int kBits, int kRows, int kColumns>
constexpr GemmKernel many(const char* name, DType weights) {
  constexpr size_t kShared = kGemmSharedBytes<kBits, kRows, kColumns>;
  static_assert(kShared <= kMostSharedBytes);
  return {name, weights, kRows, kColumns, 2 * kColumns, kShared};
}

// Of each number of rows, the narrow tiles first.
template <int kBits>
constexpr auto kernels_of(DType weights, const char* few8, const char* few16, const char* few32,
                          const char* square64, const char* square128) {
  return std::array{
      few<kBits, 8, 16>(few8, weights),         few<kBits, 8, 32>(few8, weights),
      few<kBits, 8, 64>(few8, weights),         few<kBits, 16, 16>(few16, weights),
      few<kBits, 16, 32>(few16, weights),       few<kBits, 16, 64>(few16, weights),
      few<kBits, 32, 16>(few32, weights),       few<kBits, 32, 32>(few32, weights),
      few<kBits, 32, 64>(few32, weights),       many<kBits, 64, 64>(square64, weights),
      many<kBits, 128, 128>(square128, weights)};
}

constexpr auto kBf16Kernels =
    kernels_of<16>(DType::kBF16, "gemm_bf16_few8", "gemm_bf16_few16", "gemm_bf16_few32",
                   "gemm_bf16_64x64", "gemm_bf16_128x128");
constexpr auto kInt8Kernels =
    kernels_of<8>(DType::kInt8, "gemm_int8_few8", "gemm_int8_few16", "gemm_int8_few32",
                  "gemm_int8_64x64", "gemm_int8_128x128");
constexpr auto kInt4Kernels =
    kernels_of<4>(DType::kInt4, "gemm_int4_few8", "gemm_int4_few16", "gemm_int4_few32",
                  "gemm_int4_64x64", "gemm_int4_128x128");
constexpr std::array kF32Kernels{
    GemmKernel{"gemm_f32", DType::kF32, kF32Rows, kF32Columns, kF32Threads, kF32SharedBytes}};

template <int kBits>
constexpr GemmKernel wgmma(const char* name, DType weights) {
  const GemmKernel kernel = many<kBits, kWgmmaTile, kWgmmaTile>(name, weights);
  static_assert(kWgmmaThreads == 2 * kWgmmaTile);
  return kernel;
}
constexpr GemmKernel kBf16Wgmma = wgmma<16>("gemm_bf16_wgmma", DType::kBF16);
constexpr GemmKernel kInt8Wgmma = wgmma<8>("gemm_int8_wgmma", DType::kInt8);
constexpr GemmKernel kInt4Wgmma = wgmma<4>("gemm_int4_wgmma", DType::kInt4);

// How many blocks a multiprocessor should have at least, for loads of one to hide the waits of
// another: of kernels for few rows, which do little else than load.
constexpr int kFewBlocksPerSm = 2;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int n_segments_of(const GemmSizes& sizes) { return ceil_div(sizes.n_in, kSegmentK); }

int64_t n_tiles_of(const GemmSizes& sizes, const GemmKernel& kernel) {
  return int64_t{ceil_div(sizes.n_rows, kernel.rows)} * ceil_div(sizes.n_out, kernel.columns);
}

// Whether wgmma is the fastest: it multiplies at 96 % of Hopper's rate where mma.sync ends at 63 %,
// so that its large tiles may leave a third of the multiprocessors without work.
bool is_for_wgmma(const GemmSizes& sizes, const GemmDevice& device) {
  return device.has_wgmma && sizes.weights != DType::kF32 &&
         3 * n_tiles_of(sizes, wgmma_kernel(sizes.weights)) >= 2 * int64_t{device.n_sms};
}

// Most rows for which a kernel for few rows is taken.
constexpr int kFewRows = 32;

// The widest kernel of those with as many rows as kernel `first` that makes n_blocks; else the
// narrowest.
const GemmKernel* widest(std::span<const GemmKernel> kernels, const GemmSizes& sizes,
                         int n_segments, int64_t n_blocks) {
  const GemmKernel* best = &kernels.front();
  for (const GemmKernel& kernel : kernels) {
    if (n_tiles_of(sizes, kernel) * n_segments >= n_blocks) best = &kernel;
  }
  return best;
}

}  // namespace

std::span<const GemmKernel> gemm_kernels(DType weights) {
  switch (weights) {
    case DType::kBF16:
      return kBf16Kernels;
    case DType::kInt8:
      return kInt8Kernels;
    case DType::kInt4:
      return kInt4Kernels;
    default:
      return kF32Kernels;
  }
}

const GemmKernel& wgmma_kernel(DType weights) {
  return weights == DType::kInt8 ? kInt8Wgmma : weights == DType::kInt4 ? kInt4Wgmma : kBf16Wgmma;
}

GemmChoice choose_gemm(const GemmSizes& sizes, const GemmDevice& device) {
  std::span<const GemmKernel> kernels = gemm_kernels(sizes.weights);
  const int n_segments = n_segments_of(sizes);
  const bool is_few = sizes.n_rows <= kFewRows;
  int64_t n_blocks = device.n_sms;
  if (sizes.weights != DType::kF32) {
    // The fewest rows that hold them, or the square tiles.
    size_t first = 0;
    while (kernels[first].rows < std::min(sizes.n_rows, kFewRows)) ++first;
    if (!is_few) first = kernels.size() - 2;
    size_t end = first;
    while (end < kernels.size() && (!is_few || kernels[end].rows == kernels[first].rows)) ++end;
    kernels = kernels.subspan(first, end - first);
    if (is_few) n_blocks *= kFewBlocksPerSm;
  }
  if (!is_few && is_for_wgmma(sizes, device)) return {&wgmma_kernel(sizes.weights), false};
  const GemmKernel* whole = widest(kernels, sizes, 1, n_blocks);
  const bool fills = n_tiles_of(sizes, *whole) >= n_blocks;
  if (fills || n_segments == 1) return {whole, false};
  return {widest(kernels, sizes, n_segments, n_blocks), true};
}

size_t gemm_scratch_bytes(const GemmSizes& sizes, const GemmChoice& choice) {
  if (!choice.splits_k) return 0;
  return sizeof(float) * n_segments_of(sizes) * sizes.n_rows * static_cast<size_t>(sizes.n_out);
}

GemmLaunches gemm_launches(const GemmSizes& sizes, const GemmChoice& choice,
                           const GemmOperands& operands, Store store) {
  const WeightLayout layout = weight_layout(sizes.n_out, sizes.n_in, sizes.weights);
  const GemmKernel& kernel = *choice.kernel;
  const auto n_segments = static_cast<unsigned>(n_segments_of(sizes));
  const bool adds = store == Store::kAdd;
  GemmLaunches launches{};
  launches.product = {.kernel = kernel.name,
                      .grid = {static_cast<unsigned>(ceil_div(sizes.n_rows, kernel.rows)),
                               static_cast<unsigned>(ceil_div(sizes.n_out, kernel.columns)),
                               choice.splits_k ? n_segments : 1},
                      .threads = kernel.threads,
                      .shared_bytes = kernel.shared_bytes,
                      .params = {.x = operands.x,
                                 .w = operands.w.values,
                                 .scales = operands.w.scales,
                                 .bias = operands.w.bias,
                                 .y = operands.y,
                                 .partial = choice.splits_k ? operands.scratch : nullptr,
                                 .n_rows = sizes.n_rows,
                                 .n_out = sizes.n_out,
                                 .x_stride = operands.x_stride,
                                 .k_padded = layout.k_padded,
                                 .scale_stride = layout.scale_stride,
                                 .adds = adds}};
  if (!choice.splits_k) return launches;
  const size_t n_outputs = static_cast<size_t>(sizes.n_rows) * sizes.n_out;
  launches.finish = {
      .kernel = "gemm_finish",
      .grid = {static_cast<unsigned>((n_outputs + kFinishThreads - 1) / kFinishThreads), 1, 1},
      .threads = kFinishThreads,
      .shared_bytes = 0,
      .params = {.partial = operands.scratch,
                 .bias = operands.w.bias,
                 .y = operands.y,
                 .n_rows = sizes.n_rows,
                 .n_out = sizes.n_out,
                 .n_segments = static_cast<int>(n_segments),
                 .adds = adds}};
  return launches;
}

Launch<GatherParams> gather_launch(const WeightLayout& table, const WeightPointers& pointers,
                                   const int32_t* ids, int n_rows, float* x, Store store,
                                   float scale) {
  const char* kernel = table.dtype == DType::kBF16   ? "gather_rows_bf16"
                       : table.dtype == DType::kInt8 ? "gather_rows_int8"
                       : table.dtype == DType::kInt4 ? "gather_rows_int4"
                                                     : "gather_rows_f32";
  return {.kernel = kernel,
          .grid = {static_cast<unsigned>(n_rows), 1, 1},
          .threads = kGatherThreads,
          .shared_bytes = 0,
          .params = {.table = pointers.values,
                     .scales = pointers.scales,
                     .ids = ids,
                     .x = x,
                     .n_rows = n_rows,
                     .n_in = table.n_in,
                     .k_padded = table.k_padded,
                     .scale_stride = table.scale_stride,
                     .scale = scale,
                     .adds = store == Store::kAdd}};
}

}  // namespace pb::cuda
