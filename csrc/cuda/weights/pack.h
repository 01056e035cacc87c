// Weights as the CUDA kernels read them, made on the host: values and scales in rows, by the
// formats of weight_formats.h, and a bias (n_out) f32. Numbers from n_in on are zero, and so are
// scales that belong to no group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/dtype.h"
#include "ops/backend.h"
#include "os/thread_pool.h"

namespace pb::cuda {

// The version of this layout. Raise it with every change: packed weights may be kept on disk.
inline constexpr int kWeightLayoutVersion = 2;

struct WeightLayout {
  DType dtype;
  int n_out;
  int n_in;
  int k_padded;      // n_in rounded up to 32
  int scale_stride;  // of a row, in 2 bytes; 0 without scales
  int bits;          // of a value
  size_t value_bytes;
  size_t scale_bytes;
  size_t bias_bytes;  // where there is one
};
// dtype: not kF16.
WeightLayout weight_layout(int n_out, int n_in, DType dtype);

// The dtype that a matrix gets whose tensors are of `tensor` and keep it: itself if there are
// kernels for it, else int8 or bf16, which holds or nearly holds its numbers.
DType native_dtype(DType tensor);

// Where the parts of a weight lie in device memory; each on 16 bytes.
struct WeightPointers {
  const void* values;
  const uint16_t* scales;  // null without scales
  const float* bias;       // null where there is none
};

// Those of a matrix that CudaBackend has placed.
WeightPointers pointers_of(const Matrix& w);

// Where they lie in host memory while they are packed.
struct PackedWeight {
  std::span<std::byte> values;  // value_bytes
  std::span<std::byte> scales;  // scale_bytes
};

// Stacks `parts` (each (n_i, n_in)) into one weight. Groups of the same dtype are taken as they
// are, all else is rounded to it; but to a dtype that is_native_only, nothing is. Throws
// kModelFormat where shapes or dtypes do not fit each other or a number is not finite in `dtype`,
// naming the tensor and the first such element.
void pack_weight(std::span<const TensorView> parts, const WeightLayout& layout,
                 const PackedWeight& to, ThreadPool& pool);

}  // namespace pb::cuda
