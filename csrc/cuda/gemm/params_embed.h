// Parameters of the kernels that look up rows of a weight.
#pragma once

#include <cstdint>

namespace pb::cuda {

// x[r] = table[ids[r]] * scale, or x[r] += table[ids[r]], in f32: quantised weights as the numbers
// that they stand for, of which Q4_K's and Q5_K's differences are rounded to f32, and no others.
struct GatherParams {
  const void* table;       // (n_out, k_padded), as w of GemmParams
  const uint16_t* scales;  // (n_out, scale_stride), as of GemmParams
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
