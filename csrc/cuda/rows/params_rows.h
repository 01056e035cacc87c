// Parameters of the kernels that process rows: norms and activations. All pointers are to device
// memory.
#pragma once

#include <cstdint>

#include "ops/xielu.h"

namespace pb::cuda {

// The threads of a norm's block, which are part of the order of its sums.
inline constexpr unsigned kNormThreads = 256;

// out[i] = norm(x[rows[i]]), one block per row. Numbers from `hidden` to `row_stride` become zero.
struct NormParams {
  const float* x;       // (*, hidden)
  const int32_t* rows;  // (n): row numbers of x
  const float* weight;  // (hidden)
  const float* bias;    // (hidden), for layer_norm
  int hidden;
  float eps;
  void* out;           // (n, row_stride), bf16 or f32 as the kernel's name says
  int64_t row_stride;  // numbers per row, at least `hidden`
};

// out[r] (=|+=) RMSNorm(y[r]), one block per row; rms_norm_rows_scaled then multiplies by `scale`.
// out may be y.
struct NormRowsParams {
  const float* y;       // (n_rows, y_stride), of which `hidden` columns are normed
  int64_t y_stride;     // numbers
  const float* weight;  // (hidden)
  int hidden;
  float eps;
  float* out;          // (n_rows, out_stride)
  int64_t out_stride;  // numbers
  int adds;            // 0 or 1
  float scale = 1.0f;
};

inline constexpr unsigned kRoundThreads = 256;

// out = x, one block per row. Numbers from `cols` to `row_stride` become zero.
struct RoundParams {
  const float* x;  // (n_rows, cols)
  int cols;
  void* out;           // (n_rows, row_stride), bf16 or f32 as the kernel's name says
  int64_t row_stride;  // numbers per row, at least `cols`
};

// out[r, c] = x[r, order[c]], one block per row. Numbers from `cols` to `row_stride` become zero.
struct PermuteParams {
  const float* x;        // (n_rows, x_stride)
  int64_t x_stride;      // numbers
  const int32_t* order;  // (cols): numbers below `cols`
  int cols;
  void* out;           // (n_rows, row_stride), bf16 or f32 as the kernel's name says
  int64_t row_stride;  // numbers per row, at least `cols`
};

inline constexpr unsigned kGiveRowsThreads = 256;

// x[rows[i]] (=|+=) values[i], one block per given row.
struct GiveRowsParams {
  const float* values;  // (n_given, stride), of which `columns` columns are read
  int64_t stride;       // numbers
  const int32_t* rows;  // (n_given): different row numbers of x
  int columns;
  float* x;  // (*, columns)
  int adds;  // 0 or 1
};

inline constexpr unsigned kScaleLogitsThreads = 256;

// logits *= scale, then softcap * tanh(logits / softcap) unless softcap is 0. One thread per
// number.
struct ScaleLogitsParams {
  float* logits;
  int64_t n;
  float scale;
  float softcap;
};

inline constexpr unsigned kActivateThreads = 256;
inline constexpr int kActivatedPerThread = 4;

// out = act(gate) * up, or act(gate). Block (r, c) computes the c-th kActivateThreads *
// kActivatedPerThread numbers of row r. Numbers from `cols` to `row_stride` become zero.
struct ActivateParams {
  const float* gate;    // (n_rows, gate_stride), of which `cols` columns are read
  int64_t gate_stride;  // numbers
  const float* up;      // (n_rows, up_stride), of which `cols` columns are read; or null
  int64_t up_stride;
  int cols;
  void* out;           // (n_rows, row_stride), bf16 or f32 as the kernel's name says
  int64_t row_stride;  // numbers per row, at least `cols`
};

// out = f(rows.gate). The grid is that of ActivateParams.
struct XieluParams {
  ActivateParams rows;
  Xielu of_layer;
};

}  // namespace pb::cuda
