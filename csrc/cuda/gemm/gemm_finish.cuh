// The second launch of a product that is split over k: it adds the segments in order.
#pragma once

#include "cuda/device_code/device_code.h"
#include "cuda/gemm/params_gemm.h"

namespace pb::cuda {
namespace {

// A thread computes up to kFinishedPerThread outputs of a row, kFinishThreads apart. The grid is
// blocks of columns by rows.
PB_KERNEL(gemm_finish, GemmFinishParams, kFinishThreads) {
  const int64_t row = blockIdx.y;
  const int first = static_cast<int>(blockIdx.x) * kFinishThreads * kFinishedPerThread +
                    static_cast<int>(threadIdx.x);
  const int64_t n = int64_t{static_cast<int>(gridDim.y)} * p.n_out;  // numbers per segment
  const float* const partial = p.partial + row * p.n_out;
  float* const y = p.y + row * p.y_stride;
  float sums[kFinishedPerThread];
  float before[kFinishedPerThread];
#pragma unroll
  for (int k = 0; k < kFinishedPerThread; ++k) {
    const int column = first + k * kFinishThreads;
    const bool is_there = column < p.n_out;
    sums[k] = is_there ? partial[column] : 0.0f;
    before[k] = is_there && p.adds ? y[column] : 0.0f;
  }
#pragma unroll 2
  for (int segment = 1; segment < p.n_segments; ++segment) {
#pragma unroll
    for (int k = 0; k < kFinishedPerThread; ++k) {
      const int column = first + k * kFinishThreads;
      if (column < p.n_out) sums[k] += partial[segment * n + column];
    }
  }
#pragma unroll
  for (int k = 0; k < kFinishedPerThread; ++k) {
    const int column = first + k * kFinishThreads;
    if (column >= p.n_out) return;
    if (p.bias != nullptr) sums[k] += p.bias[column];
    y[column] = p.adds ? before[k] + sums[k] : sums[k];
  }
}

}  // namespace
}  // namespace pb::cuda
