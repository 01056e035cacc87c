#include "cuda/attention/attention_launch.h"

#include <algorithm>

#include "cuda/attention/attention_shared.h"

namespace pb::cuda {
namespace {

// The approximate number of blocks of an mma.sync kernel that a multiprocessor runs at once.
constexpr int kBlocksPerMultiprocessor = 4;

constexpr int kDims[] = {64, 96, 128, 256, 512};
constexpr const char* kTileKernels[3][5][2] = {
    {{"attention_bf16_64_small", "attention_bf16_64_large"},
     {"attention_bf16_96_small", "attention_bf16_96_large"},
     {"attention_bf16_128_small", "attention_bf16_128_large"},
     {"attention_bf16_256_small", "attention_bf16_256_large"},
     {"attention_bf16_512_small", "attention_bf16_512_large"}},
    {{"attention_f16_64_small", "attention_f16_64_large"},
     {"attention_f16_96_small", "attention_f16_96_large"},
     {"attention_f16_128_small", "attention_f16_128_large"},
     {"attention_f16_256_small", "attention_f16_256_large"},
     {"attention_f16_512_small", "attention_f16_512_large"}},
    {{"attention_int8_64_small", "attention_int8_64_large"},
     {"attention_int8_96_small", "attention_int8_96_large"},
     {"attention_int8_128_small", "attention_int8_128_large"},
     {"attention_int8_256_small", "attention_int8_256_large"},
     {"attention_int8_512_small", "attention_int8_512_large"}}};

// Returns the index of the smallest padded head size that is at least head_dim.
int dim_index(int head_dim) {
  int i = 0;
  while (i < 4 && kDims[i] < head_dim) ++i;
  return i;
}

size_t tile_shared_bytes(DType kv, int head_dim, bool large) {
  const int dim = kDims[dim_index(head_dim)];
  SharedBytes arrays;
  take_tile(arrays, large ? large_tile_of(dim) : kSmallTile, dim, kv == DType::kInt8);
  return arrays.bytes();
}

// The kernels that use tensor maps, by type and head size.
constexpr const char* kTmaKernels[2][5] = {
    {"attention_bf16_64_tma", nullptr, "attention_bf16_128_tma", nullptr, nullptr},
    {"attention_f16_64_tma", nullptr, "attention_f16_128_tma", nullptr, nullptr}};
constexpr int kLeastBoxRows = 8;  // so that boxes begin at a multiple of the swizzle pattern

const char* tma_kernel(DType kv, int head_dim) {
  if (kv != DType::kBF16 && kv != DType::kF16) return nullptr;
  return kTmaKernels[kv == DType::kBF16 ? 0 : 1][dim_index(head_dim)];
}

size_t tma_shared_bytes(int head_dim) {
  SharedBytes arrays;
  take_tma_tiles(arrays, kDims[dim_index(head_dim)]);
  return arrays.bytes();
}

size_t f32_shared_bytes(int head_dim) {
  SharedBytes arrays;
  take_f32(arrays, head_dim, is_wide(head_dim));
  return arrays.bytes();
}

}  // namespace

bool has_tma_kernel(const AttentionDevice& device, const AttentionKv& kv) {
  return device.has_tma && tma_kernel(kv.dtype, kv.head_dim) != nullptr && kv.head_dim % 8 == 0 &&
         kv.block_size >= kLeastBoxRows;
}

int large_tile(const AttentionDevice& device, const AttentionKv& kv) {
  if (kv.dtype == DType::kF32 ||
      tile_shared_bytes(kv.dtype, kv.head_dim, true) > device.max_shared_bytes) {
    return 0;
  }
  if (has_tma_kernel(device, kv)) return kTmaGroups * kTmaQueries;
  return large_tile_of(kDims[dim_index(kv.head_dim)]);
}

int resident_blocks(const AttentionDevice& device) {
  return device.n_multiprocessors * kBlocksPerMultiprocessor;
}

int resident_large_blocks(const AttentionDevice& device, const AttentionKv& kv) {
  return has_tma_kernel(device, kv) ? device.n_multiprocessors : resident_blocks(device);
}

Launch<AttentionParams> launch_attention(const AttentionDevice& device, DType kv, bool large,
                                         const AttentionParams& params) {
  const Grid grid{static_cast<unsigned>(resident_blocks(device))};
  const int head_dim = params.kv.head_dim;
  if (kv == DType::kF32) {
    const bool wide = is_wide(head_dim);
    return {wide ? "attention_f32_512_small" : "attention_f32_small", grid,
            static_cast<unsigned>(f32_threads(wide)), f32_shared_bytes(head_dim), params};
  }
  const int type = kv == DType::kBF16 ? 0 : kv == DType::kF16 ? 1 : 2;
  const int dim = dim_index(head_dim);
  const int threads = large ? large_tile_threads(kDims[dim]) : kTileThreads;
  return {kTileKernels[type][dim][large ? 1 : 0], grid, static_cast<unsigned>(threads),
          tile_shared_bytes(kv, head_dim, large), params};
}

Launch<TmaAttentionParams> launch_tma_attention(const AttentionDevice& device, DType kv,
                                                const AttentionParams& params,
                                                const TensorMap& map) {
  const int head_dim = params.kv.head_dim;
  return {tma_kernel(kv, head_dim),
          {static_cast<unsigned>(device.n_multiprocessors)},
          kTmaAttentionThreads,
          tma_shared_bytes(head_dim),
          {.kv = map, .attention = params}};
}

TiledMatrix tiled_kv(const KvLayer& kv, int n_blocks) {
  const int block_size = 1 << kv.block_shift;
  return {.data = kv.numbers,
          .n_rows = n_blocks * 2 * kv.n_kv_heads * block_size,
          .n_columns = kv.head_dim,
          .box_rows = std::min(block_size, kTmaQueries)};
}

Launch<MergeParams> launch_merge(const AttentionDevice& device, const MergeParams& params) {
  const Grid grid{static_cast<unsigned>(resident_blocks(device))};
  return {"attention_merge", grid, kTileThreads, 0, params};
}

Launch<RopeStoreParams> launch_rope_store(DType kv, int max_rows, const RopeStoreParams& params) {
  constexpr const char* kKernels[4][2] = {{"rope_store_f32", "rope_store_f32_512"},
                                          {"rope_store_bf16", "rope_store_bf16_512"},
                                          {"rope_store_f16", "rope_store_f16_512"},
                                          {"rope_store_int8", "rope_store_int8_512"}};
  const int type = kv == DType::kF32 ? 0 : kv == DType::kBF16 ? 1 : kv == DType::kF16 ? 2 : 3;
  constexpr int kHeads = kRopeThreads / 32;  // per block
  const int n_blocks = (params.n_computed + kHeads - 1) / kHeads;
  return {kKernels[type][is_wide(params.kv.head_dim) ? 1 : 0],
          {static_cast<unsigned>(max_rows), static_cast<unsigned>(n_blocks)},
          kRopeThreads,
          0,
          params};
}

Launch<CopyBlockParams> launch_copy_block(int n_layers, const CopyBlockParams& params) {
  const int64_t n = std::clamp<int64_t>(params.block_bytes / 4096, 1, 64);
  return {"copy_block",
          {static_cast<unsigned>(n), static_cast<unsigned>(n_layers)},
          kCopyBlockThreads,
          0,
          params};
}

}  // namespace pb::cuda
