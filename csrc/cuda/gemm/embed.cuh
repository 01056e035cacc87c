// Look-ups of a weight's rows by index, for token embeddings and learned positions.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/gemm/params_embed.h"
#include "cuda/weights/expand.cuh"
#include "cuda/weights/expand_mxfp4.cuh"
#include "cuda/weights/expand_super.cuh"

namespace pb::cuda {
namespace {

// Returns element `at` of a row. scales and tail are those of quantised weights.
template <typename Format>
__device__ __forceinline__ float weight_at(const unsigned char* row, const unsigned char* scales,
                                           const unsigned char* tail, int at) {
  if constexpr (Format::kBits == 32) {
    return reinterpret_cast<const float*>(row)[at];
  } else if constexpr (Format::kBits == 16) {
    return __uint_as_float(unsigned{reinterpret_cast<const uint16_t*>(row)[at]} << 16);
  } else {
    using Group = GroupOf<Format>;
    const int group = at / 32;
    return Group::number(row + group * (4 * Format::kBits), at % 32,
                         Group::load(scales, group, tail, group), group % 2);
  }
}

// The grid has one block per row.
template <typename Format>
__device__ __forceinline__ void gather_row(const GatherParams& p) {
  const int r = static_cast<int>(blockIdx.x);
  const auto id = static_cast<size_t>(p.ids[r]);
  const unsigned char* const row = static_cast<const unsigned char*>(p.table) +
                                   id * (static_cast<size_t>(p.k_padded) / 8 * Format::kBits);
  const unsigned char* const scales =
      Format::kBits < 16 ? reinterpret_cast<const unsigned char*>(p.scales + id * p.scale_stride)
                         : nullptr;
  const unsigned char* const tail = scales + Format::tail_offset(p.k_padded);
  float* const x = p.x + static_cast<size_t>(r) * p.n_in;
  for (int at = static_cast<int>(threadIdx.x); at < p.n_in; at += static_cast<int>(blockDim.x)) {
    const float value = weight_at<Format>(row, scales, tail, at);
    x[at] = p.adds ? x[at] + value : value * p.scale;
  }
}

PB_KERNEL(gather_rows_f32, GatherParams, kGatherThreads) { gather_row<F32Format>(p); }
PB_KERNEL(gather_rows_bf16, GatherParams, kGatherThreads) { gather_row<Bf16Format>(p); }

}  // namespace
}  // namespace pb::cuda
