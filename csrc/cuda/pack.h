// Weights as the CUDA kernels read them, made on the host.
//
//   f32, bf16  values (n_out, k_padded)
//   int8       values (n_out, k_padded), as in Int8Group
//   int4       values (n_out, k_padded / 2): of each group of 32 its 16 bytes, as in Int4Group
//   scales     (n_out, scale_stride) f16, one a group of 32, with int8 and int4
//   bias       (n_out) f32
// Numbers from n_in on are zero, and so are scales that belong to no group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace pb::cuda {

// The version of this layout. Raise it with every change: packed weights may be kept on disk.
inline constexpr int kWeightLayoutVersion = 1;

struct WeightLayout {
  DType dtype;
  int n_out;
  int n_in;
  int k_padded;      // n_in rounded up to 32
  int scale_stride;  // k_padded / 32 rounded up to 8; 0 without scales
  size_t value_bytes;
  size_t scale_bytes;
  size_t bias_bytes;  // where there is one
};
// dtype: kF32, kBF16, kInt8 or kInt4.
WeightLayout weight_layout(int n_out, int n_in, DType dtype);

// Where the parts of a weight lie in device memory; each on 16 bytes.
struct WeightPointers {
  const void* values;
  const uint16_t* scales;  // null without scales
  const float* bias;       // null where there is none
};

// Where they lie in host memory while they are packed.
struct PackedWeight {
  std::span<std::byte> values;  // value_bytes
  std::span<std::byte> scales;  // scale_bytes
};

// Stacks `parts` (each (n_i, n_in)) into one weight. Groups of the same dtype are taken as they
// are, all else is rounded to it. Throws kModelFormat where shapes do not fit each other or a
// number is not finite in `dtype`, naming the tensor and the first such element.
void pack_weight(std::span<const TensorView> parts, const WeightLayout& layout,
                 const PackedWeight& to, ThreadPool& pool);

}  // namespace pb::cuda
