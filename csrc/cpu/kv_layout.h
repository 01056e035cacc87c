// Where the keys and values of a page lie. See KvLayout in kernels.h.
#pragma once

#include "cpu/kernels.h"
#include "ops/backend.h"

namespace pb::cpu {

// Padding that is a whole vector of every target.
inline constexpr int kLayoutVector = 16;

inline KvLayout kv_layout(const KvStorage& kv) {
  auto padded = [](int n) { return (n + kLayoutVector - 1) / kLayoutVector * kLayoutVector; };
  KvLayout layout;
  layout.bf16 = kv.dtype == DType::kBF16;
  layout.block_size = kv.block_size;
  layout.head_dim = kv.head_dim;
  layout.key_stride = padded(kv.block_size);
  layout.value_stride = padded(kv.head_dim);
  const size_t key_rows = layout.bf16 ? (kv.head_dim + 1) / 2 * 2 : kv.head_dim;
  layout.value_offset = key_rows * layout.key_stride * dtype_size(kv.dtype);
  const size_t value_bytes =
      static_cast<size_t>(kv.block_size) * layout.value_stride * dtype_size(kv.dtype);
  layout.head_bytes = (layout.value_offset + value_bytes + 63) / 64 * 64;
  layout.layer_bytes = layout.head_bytes * kv.n_kv_heads;
  layout.page_bytes = layout.layer_bytes * kv.n_layers;
  return layout;
}

}  // namespace pb::cpu
