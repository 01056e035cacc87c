// Parameters of the kernels that look up rows of a weight.
#pragma once

#include <cstdint>

namespace pb::cuda {

// x[r] = table[ids[r]] * scale, or x[r] += table[ids[r]], in f32: quantised weights as the exact
// products with their scales.
struct GatherParams {
  const void* table;       // (n_out, k_padded), as w of GemmParams
  const uint16_t* scales;  // (n_out, scale_stride) f16, with int8 and int4; else null
  const int32_t* ids;      // (n_rows), rows of the table
  float* x;                // (n_rows, n_in)
  int n_rows;
  int n_in;
  int k_padded;
  int scale_stride;
  float scale;
  bool adds;  // x += instead of x =
};
inline constexpr int kGatherThreads = 256;

}  // namespace pb::cuda
