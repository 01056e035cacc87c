// Rotary positions, the q/k norm before them, and the write of a position's key and value.
#pragma once

#include "cpu/kernels.h"
#include "cpu/norm-inl.h"
#include "cpu/rows-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// One head (head_dim) in place: RMSNorm if asked, then the rotation of (x[i], x[i + half]) by the
// angle of frequency i (Su et al., "RoFormer", 2021; the half-split order of Hugging Face). Every
// product and sum is rounded by itself, as there.
inline void rotate_head(const RotateArgs& args, float* head) {
  const int n = args.head_dim;
  if (args.norm_weight != nullptr) {
    const NormArgs norm{args.norm_weight, nullptr, args.norm_eps, n};
    rms_norm(norm, head, RowOut{RowFormat::kF32, head, nullptr, 0});
  }
  if (args.cosines == nullptr) return;
  const int half = n / 2;
  for (int i = 0; i < half; i += kWidth) {
    const Vec a = load_tail(head, i, half);
    const Vec b = load_tail(head + half, i, half);
    const Vec c = load_tail(args.cosines, i, half);
    const Vec s = load_tail(args.sines, i, half);
    store_tail(head, i, half, sub(mul(a, c), mul(b, s)));
    store_tail(head + half, i, half, add(mul(b, c), mul(a, s)));
  }
}

// Spreads a row of numbers over the column `slot` of a page's keys.
inline void store_key(const KvLayout& kv, const float* key, std::byte* keys, int slot) {
  for (int i = 0; i < kv.head_dim; i += kWidth) {
    const int n = kv.head_dim - i < kWidth ? kv.head_dim - i : kWidth;
    const Vec v = load_tail(key, i, kv.head_dim);
    if (kv.bf16) {
      alignas(64) uint16_t lanes[kWidth];
      store_bf16_n(lanes, round_to_bf16(v), n);
      auto* pairs = reinterpret_cast<uint16_t*>(keys);
      for (int j = 0; j < n; ++j) {
        const int d = i + j;
        pairs[(static_cast<size_t>(d / 2) * kv.key_stride + slot) * 2 + d % 2] = lanes[j];
      }
    } else {
      auto* columns = reinterpret_cast<float*>(keys);
      for (int j = 0; j < n; ++j)
        columns[static_cast<size_t>(i + j) * kv.key_stride + slot] = key[i + j];
    }
  }
}

inline void store_key_value(const KvLayout& kv, const float* key, const float* value,
                            std::byte* head, int slot) {
  store_key(kv, key, head, slot);
  std::byte* values = head + kv.value_offset;
  const size_t first = static_cast<size_t>(slot) * kv.value_stride;
  for (int i = 0; i < kv.head_dim; i += kWidth) {
    const int n = kv.head_dim - i < kWidth ? kv.head_dim - i : kWidth;
    const Vec v = load_tail(value, i, kv.head_dim);
    if (kv.bf16) {
      store_bf16_n(reinterpret_cast<uint16_t*>(values) + first + i, round_to_bf16(v), n);
    } else {
      store_tail(reinterpret_cast<float*>(values) + first, i, kv.head_dim, v);
    }
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
