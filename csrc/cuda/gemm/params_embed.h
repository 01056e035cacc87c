// Parameters of the kernels that look up rows of a weight.
#pragma once

#include <cstdint>

namespace pb::cuda {

// x[r] = table[ids[r]] * scale, or x[r] += table[ids[r]], in f32. The numbers of quantised weights
// are exact, except the differences of Q4_K and Q5_K, which are rounded to f32.
struct GatherParams {
  const void* table;       // (n_out, k_padded), like w of GemmParams
  const uint16_t* scales;  // (n_out, scale_stride), like those of GemmParams
  const int32_t* ids;      // (n_rows), rows of the table
  float* x;                // (n_rows, n_in)
  int n_rows;
  int n_in;
  int k_padded;
  int scale_stride;
  float scale;
  bool adds;  // true: x += instead of x =
};
inline constexpr int kGatherThreads = 256;

}  // namespace pb::cuda
