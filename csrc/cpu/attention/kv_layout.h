// The computation of a KvLayout (kernels.h), which describes the addresses of keys and values in a
// KV block.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "ops/backend.h"

namespace pb::cpu {

// Padding to this number is a whole number of vectors for every target.
inline constexpr int kLayoutVector = 16;

// Returns the distance between two rows of values.
inline int value_stride_of(int head_dim) {
  constexpr int kPadding = 2 * kValuePair;
  return (head_dim + kPadding - 1) / kPadding * kPadding;
}

inline KvNumbers kv_numbers(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return KvNumbers::kBf16;
    case DType::kF16:
      return KvNumbers::kF16;
    case DType::kInt8:
      return KvNumbers::kInt8;
    default:
      return KvNumbers::kF32;
  }
}

inline KvLayout kv_layout(const KvStorage& kv) {
  constexpr size_t kLine = 64;
  const auto padded = [](size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; };
  KvLayout layout;
  layout.numbers = kv_numbers(kv.dtype);
  layout.block_size = kv.block_size;
  layout.head_dim = kv.head_dim;
  layout.key_stride = (kv.block_size + kLayoutVector - 1) / kLayoutVector * kLayoutVector;
  layout.value_stride = value_stride_of(kv.head_dim);
  const bool scaled = layout.numbers == KvNumbers::kInt8;
  const size_t number = scaled ? 1 : dtype_size(kv.dtype);
  const size_t scale = scaled ? sizeof(float) : 0;
  const size_t key_rows =
      layout.numbers == KvNumbers::kBf16 ? (kv.head_dim + 1) / 2 * 2 : kv.head_dim;
  const size_t value_rows = kv.block_size;
  layout.key_scales = padded(key_rows * layout.key_stride * number);
  layout.value_scales = padded(value_rows * layout.value_stride * number);
  layout.key_block_bytes = padded(layout.key_scales + layout.key_stride * scale);
  layout.value_block_bytes = padded(layout.value_scales + value_rows * scale);
  layout.values = layout.key_block_bytes * kv.n_blocks;
  layout.head_bytes = layout.values + layout.value_block_bytes * kv.n_blocks;
  layout.layer_bytes = layout.head_bytes * kv.n_kv_heads;
  return layout;
}

}  // namespace pb::cpu
