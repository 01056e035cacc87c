#include "cuda/gemm/gemm_launch.h"

#include <algorithm>
#include <array>

#include "formats/dtype.h"

namespace pb::cuda {
namespace {

template <typename Format, int kRows, int kColumns>
constexpr GemmKernel few(const char* name, DType weights) {
  using Tile = FewTile<Format, kRows>;
  constexpr size_t kStage = Tile::kXBytes + kColumns * Tile::kColumnBytes;
  static_assert(Tile::kStages * kStage <= kMostSharedBytes);
  return {name, weights, kRows, kColumns, 2 * kColumns, Tile::kStages * kStage};
}

template <typename Format, int kRows, int kColumns>
constexpr GemmKernel many(const char* name, DType weights) {
  constexpr size_t kShared = kGemmSharedBytes<Format::kBits, kRows, kColumns>;
  static_assert(kShared <= kMostSharedBytes);
  return {name, weights, kRows, kColumns, 2 * kColumns, kShared};
}

// The names of the kernels of a format.
struct KernelNames {
  const char *few8, *few16, *few32, *square64, *square128, *wgmma, *tma;
};

// Returns a format's kernels, ordered by rows and then from narrow to wide tiles.
template <typename Format>
constexpr auto kernels_of(DType weights, const KernelNames& names) {
  return std::array{few<Format, 8, 16>(names.few8, weights),
                    few<Format, 8, 32>(names.few8, weights),
                    few<Format, 8, 64>(names.few8, weights),
                    few<Format, 16, 16>(names.few16, weights),
                    few<Format, 16, 32>(names.few16, weights),
                    few<Format, 16, 64>(names.few16, weights),
                    few<Format, 32, 16>(names.few32, weights),
                    few<Format, 32, 32>(names.few32, weights),
                    few<Format, 32, 64>(names.few32, weights),
                    many<Format, 64, 64>(names.square64, weights),
                    many<Format, 128, 128>(names.square128, weights)};
}

constexpr std::array kF32Kernels{
    GemmKernel{"gemm_f32", DType::kF32, kF32Rows, kF32Columns, kF32Threads, kF32SharedBytes}};

template <typename Format>
constexpr GemmKernel wgmma(const char* name, DType weights) {
  const GemmKernel kernel = many<Format, kWgmmaTile, kWgmmaTile>(name, weights);
  static_assert(kWgmmaThreads == 2 * kWgmmaTile);
  return kernel;
}
template <typename Format>
constexpr GemmKernel tma(const char* name, DType weights) {
  constexpr size_t kShared = kTmaSharedBytes<Format::kBits>;
  static_assert(kShared <= kMostSharedBytesOfHopper);
  return {.name = name,
          .weights = weights,
          .rows = kWgmmaTile,
          .columns = kWgmmaTile,
          .threads = Format::kBits == 16 ? kTmaThreads : kWgmmaThreads,
          .shared_bytes = kShared,
          .has_maps = true,
          .takes_turns = Format::kBits == 16};
}
// The kernels for weights of a dtype.
struct KernelsOfDType {
  std::span<const GemmKernel> all;
  const GemmKernel* wgmma;  // null: no kernel
  const GemmKernel* tma;    // null: no kernel
  const char* gather;
  const char* expand = nullptr;  // null: the weights are not quantised
};

// The kernels of a layout; kNames are those of weight_kernels.cuh.
template <typename Layout, DType kWeights, const KernelNames& kNames>
struct Table {
  static constexpr auto kAll = kernels_of<Layout>(kWeights, kNames);
  static constexpr GemmKernel kWgmma = wgmma<Layout>(kNames.wgmma, kWeights);
  static constexpr GemmKernel kTma = tma<Layout>(kNames.tma, kWeights);
};
#define PB_NAMES(constant, name, Type)                                                       \
  constexpr KernelNames constant##Names = {"gemm_" #name "_few8",    "gemm_" #name "_few16", \
                                           "gemm_" #name "_few32",   "gemm_" #name "_64x64", \
                                           "gemm_" #name "_128x128", "gemm_" #name "_wgmma", \
                                           "gemm_" #name "_tma"};
PB_CUDA_FORMATS(PB_NAMES)
PB_NAMES(kBF16, bf16, Bf16)
#undef PB_NAMES

KernelsOfDType kernels_for(DType weights) {
  switch (weights) {
    case DType::kBF16: {
      using Kernels = Table<Bf16Format, DType::kBF16, kBF16Names>;
      return {Kernels::kAll, &Kernels::kWgmma, &Kernels::kTma, "gather_rows_bf16"};
    }
#define PB_CASE(constant, name, Type)                                              \
  case DType::constant: {                                                          \
    using Kernels = Table<Type##Format, DType::constant, constant##Names>;         \
    return {Kernels::kAll, &Kernels::kWgmma, &Kernels::kTma, "gather_rows_" #name, \
            "expand_" #name};                                                      \
  }
      PB_CUDA_FORMATS(PB_CASE)
#undef PB_CASE
    default:
      return {kF32Kernels, nullptr, nullptr, "gather_rows_f32"};
  }
}

// The least number of tiles per multiprocessor for which kernels for few rows go through all of k.
// With fewer tiles, most multiprocessors would wait for those with one more tile, so k is split.
constexpr int kWholeTilesPerSm = 3;
constexpr int kWholeExpandingTilesPerSm = 4;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int n_segments_of(const GemmSizes& sizes) { return ceil_div(sizes.n_in, kSegmentK); }

int64_t n_tiles_of(const GemmSizes& sizes, const GemmKernel& kernel) {
  return int64_t{ceil_div(sizes.n_rows, kernel.rows)} * ceil_div(sizes.n_out, kernel.columns);
}

// Returns the least number of blocks of large or wide tiles. They are faster than smaller tiles
// even if a third of the multiprocessors has no work.
int64_t fewest_blocks(const GemmDevice& device) { return ceil_div(2 * device.n_sms, 3); }

// Returns true if wgmma is the fastest kernel with one block per tile, or per segment of a tile. On
// an H100, a large product reaches 597 TFLOP/s by wgmma and 266 by mma.sync.
bool is_for_wgmma(const GemmSizes& sizes, const GemmDevice& device, int n_segments) {
  return device.has_wgmma && sizes.weights != DType::kF32 &&
         n_segments * n_tiles_of(sizes, wgmma_kernel(sizes.weights)) >= fewest_blocks(device);
}

// The most rows for which a kernel for few rows is chosen.
constexpr int kFewRows = 32;

bool is_expanded(DType weights) { return weights != DType::kF32 && weights != DType::kBF16; }

// The least number of rows for which weights are expanded to bf16 in memory first. At some 300
// rows, the time to write and read the expanded weights equals the time that expanding them in
// tiles would add.
constexpr int kExpandedRows = 384;
constexpr size_t kMostExpandedBytes = size_t{256} << 20;

int expanded_columns(const GemmSizes& sizes) {
  const WeightLayout layout = weight_layout(sizes.n_out, sizes.n_in, DType::kBF16);
  const size_t of_tile = size_t{2} * kWgmmaTile * static_cast<size_t>(layout.k_padded);
  const auto n_tiles = static_cast<int>(std::max<size_t>(1, kMostExpandedBytes / of_tile));
  return std::min(sizes.n_out, n_tiles * kWgmmaTile);
}

// Returns the kernel with the widest tiles that has at least n_blocks blocks, or else the narrowest
// one. The kernels are ordered from narrow to wide.
const GemmKernel* widest(std::span<const GemmKernel> kernels, const GemmSizes& sizes,
                         int n_segments, int64_t n_blocks) {
  const GemmKernel* best = &kernels.front();
  for (const GemmKernel& kernel : kernels) {
    if (n_tiles_of(sizes, kernel) * n_segments >= n_blocks) best = &kernel;
  }
  return best;
}

// Chooses from the kernels with the fewest rows that hold those of the product. Each tile of
// columns reads the rows again. For bf16 weights, which are read as fast as they are multiplied, a
// tile has at most twice as many columns as rows; for other weights it is the widest, whose many
// warps share the expansion.
GemmChoice choose_few(std::span<const GemmKernel> kernels, const GemmSizes& sizes,
                      const GemmDevice& device, int n_segments) {
  const bool expands = is_expanded(sizes.weights);
  const auto is_fit = [&](const GemmKernel& kernel) {
    return kernel.rows >= sizes.n_rows && (expands || kernel.columns <= 2 * kernel.rows);
  };
  const auto first = std::ranges::find_if(kernels, is_fit);
  const auto end = std::find_if(first, kernels.end(), [&](const GemmKernel& kernel) {
    return kernel.rows != first->rows || !is_fit(kernel);
  });
  const std::span<const GemmKernel> fit(first, end);
  const int64_t n_tiles = n_tiles_of(sizes, fit.back());
  const int whole_tiles = expands ? kWholeExpandingTilesPerSm : kWholeTilesPerSm;
  const bool splits_k = n_segments > 1 && n_tiles < int64_t{whole_tiles} * device.n_sms;
  return {widest(fit, sizes, splits_k ? n_segments : 1, fewest_blocks(device)), splits_k};
}

}  // namespace

std::span<const GemmKernel> gemm_kernels(DType weights) { return kernels_for(weights).all; }

const GemmKernel& wgmma_kernel(DType weights) { return *kernels_for(weights).wgmma; }

const GemmKernel& tma_kernel(DType weights) { return *kernels_for(weights).tma; }

GemmChoice choose_gemm(const GemmSizes& sizes, const GemmDevice& device) {
  std::span<const GemmKernel> kernels = gemm_kernels(sizes.weights);
  const int n_segments = n_segments_of(sizes);
  if (sizes.weights != DType::kF32) {
    if (sizes.n_rows <= kFewRows) return choose_few(kernels, sizes, device, n_segments);
    kernels = kernels.last(2);  // the kernels with square tiles
  }
  if (is_for_wgmma(sizes, device, n_segments)) {
    const bool splits_k = !is_for_wgmma(sizes, device, 1);
    if (!device.has_tma) return {&wgmma_kernel(sizes.weights), splits_k};
    if (!splits_k && is_expanded(sizes.weights) && sizes.n_rows >= kExpandedRows) {
      return {&tma_kernel(DType::kBF16), false, device.n_sms, expanded_columns(sizes)};
    }
    return {&tma_kernel(sizes.weights), splits_k, device.n_sms};
  }
  const GemmKernel* const whole = widest(kernels, sizes, 1, device.n_sms);
  if (n_segments == 1 || n_tiles_of(sizes, *whole) >= device.n_sms) return {whole, false};
  return {widest(kernels, sizes, n_segments, device.n_sms), true};
}

size_t gemm_scratch_bytes(const GemmSizes& sizes, const GemmChoice& choice) {
  if (choice.expanded_columns > 0) {
    return weight_layout(choice.expanded_columns, sizes.n_in, DType::kBF16).value_bytes;
  }
  if (!choice.splits_k) return 0;
  return sizeof(float) * n_segments_of(sizes) * sizes.n_rows * static_cast<size_t>(sizes.n_out);
}

GemmLaunches gemm_launches(const GemmSizes& sizes, const GemmChoice& choice,
                           const GemmOperands& operands, Store store) {
  const WeightLayout layout = weight_layout(sizes.n_out, sizes.n_in, sizes.weights);
  const GemmKernel& kernel = *choice.kernel;
  const auto n_segments = static_cast<unsigned>(n_segments_of(sizes));
  const bool adds = store == Store::kAdd;
  const int y_stride = operands.y_stride != 0 ? operands.y_stride : sizes.n_out;
  Grid grid{static_cast<unsigned>(ceil_div(sizes.n_rows, kernel.rows)),
            static_cast<unsigned>(ceil_div(sizes.n_out, kernel.columns)),
            choice.splits_k ? n_segments : 1};
  if (kernel.takes_turns) {
    const unsigned n_tiles = grid.x * grid.y;
    const auto most = static_cast<unsigned>(choice.most_blocks);
    grid = {most > 0 ? std::min(n_tiles, most) : n_tiles, 1, grid.z};
  }
  GemmLaunches launches{};
  launches.product = {.kernel = kernel.name,
                      .grid = grid,
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
                                 .y_stride = y_stride,
                                 .adds = adds}};
  if (!choice.splits_k) return launches;
  launches.finish = {
      .kernel = "gemm_finish",
      .grid = {static_cast<unsigned>(ceil_div(sizes.n_out, kFinishThreads * kFinishedPerThread)),
               static_cast<unsigned>(sizes.n_rows), 1},
      .threads = kFinishThreads,
      .shared_bytes = 0,
      .params = {.partial = operands.scratch,
                 .bias = operands.w.bias,
                 .y = operands.y,
                 .n_out = sizes.n_out,
                 .y_stride = y_stride,
                 .n_segments = static_cast<int>(n_segments),
                 .adds = adds}};
  return launches;
}

GemmTiles gemm_tiles(const GemmSizes& sizes, const GemmOperands& operands) {
  const WeightLayout layout = weight_layout(sizes.n_out, sizes.n_in, sizes.weights);
  return {.x = {.data = operands.x,
                .n_rows = sizes.n_rows,
                .n_columns = operands.x_stride,
                .box_rows = kWgmmaTile},
          .w = {.data = sizes.weights == DType::kBF16 ? operands.w.values : nullptr,
                .n_rows = sizes.n_out,
                .n_columns = layout.k_padded,
                .box_rows = kWgmmaTile}};
}

Launch<TmaGemmParams> with_maps(const Launch<GemmParams>& product, const TensorMap& x,
                                const TensorMap& w) {
  return {product.kernel,
          product.grid,
          product.threads,
          product.shared_bytes,
          {.x = x, .w = w, .product = product.params}};
}

Launch<ExpandWeightsParams> expand_launch(const WeightLayout& layout, const WeightPointers& w,
                                          int first, int n_columns, void* scratch) {
  const size_t row_bytes = static_cast<size_t>(layout.k_padded) / 8 * layout.bits;
  const auto at = static_cast<size_t>(first);
  const int64_t n_groups = int64_t{n_columns} * (layout.k_padded / kGroup);
  return {.kernel = kernels_for(layout.dtype).expand,
          .grid = {static_cast<unsigned>((n_groups + kExpandThreads - 1) / kExpandThreads), 1, 1},
          .threads = kExpandThreads,
          .shared_bytes = 0,
          .params = {.w = static_cast<const std::byte*>(w.values) + at * row_bytes,
                     .scales = w.scales + at * static_cast<size_t>(layout.scale_stride),
                     .out = scratch,
                     .n_out = n_columns,
                     .k_padded = layout.k_padded,
                     .scale_stride = layout.scale_stride}};
}

namespace {

// Expands and multiplies expanded_columns columns at a time.
void launch_expanded(Device& device, const GemmSizes& sizes, const GemmChoice& choice,
                     const GemmOperands& operands, Store store) {
  const WeightLayout layout = weight_layout(sizes.n_out, sizes.n_in, sizes.weights);
  const GemmChoice of_bf16{choice.kernel, choice.splits_k, choice.most_blocks};
  for (int first = 0; first < sizes.n_out; first += choice.expanded_columns) {
    const int n = std::min(choice.expanded_columns, sizes.n_out - first);
    device.launch(expand_launch(layout, operands.w, first, n, operands.scratch));
    GemmOperands of_part = operands;
    of_part.w = {operands.scratch, nullptr,
                 operands.w.bias == nullptr ? nullptr : operands.w.bias + first};
    of_part.y = operands.y + first;
    of_part.y_stride = operands.y_stride != 0 ? operands.y_stride : sizes.n_out;
    launch_gemm(device, {sizes.n_rows, n, sizes.n_in, DType::kBF16}, of_bf16, of_part, store);
  }
}

}  // namespace

void launch_gemm(Device& device, const GemmSizes& sizes, GemmChoice choice,
                 const GemmOperands& operands, Store store) {
  if (choice.expanded_columns > 0) {
    return launch_expanded(device, sizes, choice, operands, store);
  }
  std::optional<TensorMap> x;
  std::optional<TensorMap> w = TensorMap{};
  if (choice.kernel->has_maps) {
    const GemmTiles tiles = gemm_tiles(sizes, operands);
    x = device.make_tensor_map(tiles.x);
    if (tiles.w.data != nullptr) w = device.make_tensor_map(tiles.w);
    if (!x || !w) choice.kernel = &wgmma_kernel(sizes.weights);
  }
  const GemmLaunches launches = gemm_launches(sizes, choice, operands, store);
  if (choice.kernel->has_maps) {
    device.launch(with_maps(launches.product, *x, *w));
  } else {
    device.launch(launches.product);
  }
  if (launches.finish) device.launch(*launches.finish);
}

Launch<GatherParams> gather_launch(const WeightLayout& table, const WeightPointers& pointers,
                                   const int32_t* ids, int n_rows, float* x, Store store,
                                   float scale) {
  return {.kernel = kernels_for(table.dtype).gather,
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
