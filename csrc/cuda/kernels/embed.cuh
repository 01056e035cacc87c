// Rows of a weight by index: token embeddings, learned positions.
#pragma once

#include "cuda/kernels/device_code.h"
#include "cuda/kernels/expand.cuh"
#include "cuda/kernels/params_embed.h"

namespace pb::cuda {
namespace {

// Element `at` of a row of weights of kBits.
template <int kBits>
__device__ __forceinline__ float weight_at(const unsigned char* row, const uint16_t* scales,
                                           int at) {
  if constexpr (kBits == 32) {
    return reinterpret_cast<const float*>(row)[at];
  } else if constexpr (kBits == 16) {
    return __uint_as_float(unsigned{reinterpret_cast<const uint16_t*>(row)[at]} << 16);
  } else if constexpr (kBits == 8) {
    return static_cast<float>(reinterpret_cast<const int8_t*>(row)[at]) *
           f16_value(scales[at / 32]);
  } else {
    const unsigned pair = row[at / 32 * 16 + at % 16];
    const int whole = static_cast<int>(at % 32 < 16 ? pair & 15u : pair >> 4) - 8;
    return static_cast<float>(whole) * f16_value(scales[at / 32]);
  }
}

// Grid: a block a row.
template <int kBits>
__device__ __forceinline__ void gather_row(const GatherParams& p) {
  const int r = static_cast<int>(blockIdx.x);
  const auto id = static_cast<size_t>(p.ids[r]);
  const unsigned char* const row = static_cast<const unsigned char*>(p.table) +
                                   id * (static_cast<size_t>(p.k_padded) / 8 * kBits);
  const uint16_t* const scales = kBits < 16 ? p.scales + id * p.scale_stride : nullptr;
  float* const x = p.x + static_cast<size_t>(r) * p.n_in;
  for (int at = static_cast<int>(threadIdx.x); at < p.n_in; at += static_cast<int>(blockDim.x)) {
    const float value = weight_at<kBits>(row, scales, at);
    x[at] = p.adds ? x[at] + value : value * p.scale;
  }
}

PB_KERNEL(gather_rows_f32, GatherParams, kGatherThreads) { gather_row<32>(p); }
PB_KERNEL(gather_rows_bf16, GatherParams, kGatherThreads) { gather_row<16>(p); }
PB_KERNEL(gather_rows_int8, GatherParams, kGatherThreads) { gather_row<8>(p); }
PB_KERNEL(gather_rows_int4, GatherParams, kGatherThreads) { gather_row<4>(p); }

}  // namespace
}  // namespace pb::cuda
