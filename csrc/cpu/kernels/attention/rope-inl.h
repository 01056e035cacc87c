// Rotary positions, the q/k norm before them, and the store of a position's key and value.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/attention/kv_numbers-inl.h"
#include "cpu/kernels/norm-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Processes one head (head_dim) in place: an optional RMSNorm, then the rotation of (x[i], x[i +
// half]) by the angle of frequency i (Su et al., "RoFormer", 2021; the half-split order of Hugging
// Face). Every product and sum is rounded separately, as in Hugging Face's code.
inline void rotate_head(const RotateArgs& args, float* head) {
  const int n = args.head_dim;
  if (args.norm_weight != nullptr) {
    const NormArgs norm{args.norm_weight, nullptr, args.norm_eps, n};
    rms_norm(norm, head, RowOut{RowFormat::kF32, head, nullptr});
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

// Stores one key or value: number d goes to `to[at(d)]`. `scale` is the address of its scale, if
// the type has one.
template <typename Kv, typename At>
PB_INLINE void store_numbers(const float* numbers, int n, typename Kv::Number* to, At at,
                             [[maybe_unused]] float* scale) {
  [[maybe_unused]] Vec divisor;
  if constexpr (Kv::kScaled) {
    *scale = int8_scale(numbers, n);
    divisor = set1(*scale > 0.0f ? *scale : 1.0f);
  }
  for (int i = 0; i < n; i += kWidth) {
    const int n_lanes = n - i < kWidth ? n - i : kWidth;
    Vec v = load_tail(numbers, i, n);
    if constexpr (Kv::kScaled) v = div(v, divisor);
    alignas(64) typename Kv::Number lanes[kWidth];
    Kv::write(lanes, v);
    for (int j = 0; j < n_lanes; ++j) to[at(i + j)] = lanes[j];
  }
}

template <typename Kv>
inline void store_kv(const KvLayout& kv, const float* key, const float* value, std::byte* head,
                     int kv_block, int slot) {
  using Number = typename Kv::Number;
  std::byte* keys = head + kv_block * kv.key_block_bytes;
  store_numbers<Kv>(
      key, kv.head_dim, reinterpret_cast<Number*>(keys),
      [&](int d) { return Kv::key_at(d, slot, kv.key_stride); },
      reinterpret_cast<float*>(keys + kv.key_scales) + slot);
  std::byte* values = head + kv.values + kv_block * kv.value_block_bytes;
  store_numbers<Kv>(
      value, kv.head_dim,
      reinterpret_cast<Number*>(values) + static_cast<size_t>(slot) * kv.value_stride,
      [](int d) { return Kv::value_at(d); },
      reinterpret_cast<float*>(values + kv.value_scales) + slot);
}

inline void store_key_value(const KvLayout& kv, const float* key, const float* value,
                            std::byte* head, int kv_block, int slot) {
  switch (kv.numbers) {
    case KvNumbers::kF32:
      return store_kv<F32Kv>(kv, key, value, head, kv_block, slot);
    case KvNumbers::kBf16:
      return store_kv<Bf16Kv>(kv, key, value, head, kv_block, slot);
    case KvNumbers::kF16:
      return store_kv<F16Kv>(kv, key, value, head, kv_block, slot);
    case KvNumbers::kInt8:
      return store_kv<Int8Kv>(kv, key, value, head, kv_block, slot);
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
