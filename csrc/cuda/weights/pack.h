// The host's packing of weights for the CUDA kernels: values and scales in rows, with the formats
// of weight_formats.h, and a bias (n_out) in f32. Numbers from n_in on are zero, and so are scales
// that belong to no group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "ops/backend.h"
#include "os/thread_pool.h"

namespace pb::cuda {

// The version of this layout. Every change has to increase it, because packed weights may be stored
// on disk.
inline constexpr int kWeightLayoutVersion = 2;

struct WeightLayout {
  DType dtype;
  int n_out;
  int n_in;
  int k_padded;      // n_in rounded up to 32
  int scale_stride;  // 2-byte units per row; 0 without scales
  int bits;          // per value
  size_t value_bytes;
  size_t scale_bytes;
  size_t bias_bytes;  // if there is a bias
};
// Returns the layout for a dtype other than kF16.
WeightLayout weight_layout(int n_out, int n_in, DType dtype);

// Returns the dtype of a matrix that keeps the native dtype of its tensors: the same dtype if there
// are kernels for it, else int8 or bf16, which holds or nearly holds its numbers.
DType native_dtype(DType tensor);

// The addresses of a weight's parts in device memory, each aligned to 16 bytes.
struct WeightPointers {
  const void* values;
  const uint16_t* scales;  // null without scales
  const float* bias;       // null where there is none
};

// Returns the addresses for a matrix that CudaBackend has placed.
WeightPointers pointers_of(const Matrix& w);

// The destination in host memory while a weight is packed.
struct PackedWeight {
  std::span<std::byte> values;  // value_bytes
  std::span<std::byte> scales;  // scale_bytes
};

// Stacks `parts` (each (n_i, n_in)) into one weight. Groups of the same dtype are copied, and all
// other numbers are rounded to the dtype; for a dtype that is_native_only nothing is rounded.
// Throws kModelFormat, with the name of the tensor and the first such element, if shapes or dtypes
// do not match or a number is not finite in `dtype`.
void pack_weight(std::span<const TensorView> parts, const WeightLayout& layout,
                 const PackedWeight& to, ThreadPool& pool);

}  // namespace pb::cuda
