// The expansion of quantised weights to bf16 matrices in global memory, for products of very many
// rows. Each number is the same as in kernels that expand weights in their tiles.
#pragma once

#include "cuda/gemm/gemm_quantised.cuh"

namespace pb::cuda {
namespace {

// One thread expands a group of 32. The grid covers the groups, row by row.
template <typename Format>
__device__ __forceinline__ void expand_weights(const ExpandWeightsParams& p) {
  constexpr int kGroupBytes = 4 * Format::kBits;
  const int in_row = p.k_padded / 32;
  const int64_t n = int64_t{blockIdx.x} * kExpandThreads + threadIdx.x;
  const int64_t row = n / in_row;
  const int group = static_cast<int>(n % in_row);
  if (row >= p.n_out) return;
  const auto* const scales =
      reinterpret_cast<const unsigned char*>(p.scales + row * p.scale_stride);
  const unsigned char* const tail = scales + Format::tail_offset(p.k_padded);
  const GroupOf<Format> of_group(GroupOf<Format>::load(scales, group, tail, group), group % 2);
  uint4* const out = static_cast<uint4*>(p.out) + n * 4;
  expand_group<Format>(static_cast<const unsigned char*>(p.w) + n * kGroupBytes, 16, of_group,
                       [&](int part, const uint4& v) { out[part] = v; });
}

}  // namespace
}  // namespace pb::cuda
