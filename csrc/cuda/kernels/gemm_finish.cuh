// The second launch of a product that was split over k: adds its segments in order.
#pragma once

#include "cuda/kernels/device_code.h"
#include "cuda/kernels/params_gemm.h"

namespace pb::cuda {
namespace {

// A thread an output. Grid: blocks of outputs, row by row.
PB_KERNEL(gemm_finish, GemmFinishParams, kFinishThreads) {
  const size_t n = static_cast<size_t>(p.n_rows) * p.n_out;
  const size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= n) return;
  float sum = p.partial[at];
  for (int segment = 1; segment < p.n_segments; ++segment) sum += p.partial[segment * n + at];
  const size_t column = at % p.n_out;
  if (p.bias != nullptr) sum += p.bias[column];
  float* const y = p.y + at / p.n_out * p.y_stride + column;
  *y = p.adds ? *y + sum : sum;
}

}  // namespace
}  // namespace pb::cuda
