// The types of stored keys and values: their rounding, conversion and layout.
//
// int8 has a scale for each key and each value, the greatest magnitude over 127; it multiplies a
// score or a probability, never the numbers. f16 holds magnitudes up to 65504; finite numbers are
// clamped to that. An infinite number or a NaN stays infinite or NaN in every type, so that the
// failure of a sequence stays visible.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// A type Kv of keys and values has:
//
// Number      the type of a stored number
// kPaired     true if a lane contains two numbers
// kScaled     true if each key and each value has a scale
// write       rounds a vector and stores its numbers next to each other
// key_at      the index of number d of a key in `slot`
// value_at    the index of number d of a value
// column      the first column of the i-th pair of vectors of a row of values; the second vector
//             starts kSecond columns later

// Consecutive vectors of numbers.
struct Plain {
  static constexpr bool kPaired = false;
  static constexpr bool kScaled = false;
  static constexpr int kSecond = kWidth;
  static PB_INLINE size_t key_at(int d, int slot, int stride) {
    return static_cast<size_t>(d) * stride + slot;
  }
  static PB_INLINE int value_at(int d) { return d; }
  static PB_INLINE int column(int i) { return i * 2 * kWidth; }
};

struct F32Kv : Plain {
  using Number = float;
  static PB_INLINE Vec read(const float* p) { return load(p); }
  static PB_INLINE void write(float* p, Vec v) { store(p, v); }
};

struct F16Kv : Plain {
  using Number = uint16_t;
  static PB_INLINE Vec read(const uint16_t* p) { return load_f16(p); }
  static PB_INLINE void write(uint16_t* p, Vec v) {
    const Vec held = max(set1(-65504.0f), min(set1(65504.0f), v));
    store_f16(p, select_less(abs(v), set1(__builtin_inff()), held, v));
  }
};

// write() stores numbers that are divided by their scale.
struct Int8Kv : Plain {
  using Number = int8_t;
  static constexpr bool kScaled = true;
  static PB_INLINE Vec read(const int8_t* p) { return load_int8(p); }
  static PB_INLINE void write(int8_t* p, Vec v) {
    // In this order of operations a NaN becomes 127, and its scale is NaN.
    store_bytes(p, to_nearest(max(min(v, set1(127.0f)), set1(-127.0f))));
  }
};

// Pairs of numbers: neighbours in head_dim for keys, numbers at a distance of kValuePair for
// values.
struct Bf16Kv {
  using Number = uint16_t;
  static constexpr bool kPaired = true;
  static constexpr bool kScaled = false;
  static constexpr int kSecond = kValuePair;
  static PB_INLINE void write(uint16_t* p, Vec v) { store_bf16_n(p, round_to_bf16(v), kWidth); }
  static PB_INLINE size_t key_at(int d, int slot, int stride) {
    return (static_cast<size_t>(d / 2) * stride + slot) * 2 + d % 2;
  }
  static PB_INLINE int value_at(int d) {
    return d / (2 * kValuePair) * (2 * kValuePair) + d % kValuePair * 2 + d / kValuePair % 2;
  }
  static PB_INLINE int column(int i) {
    constexpr int kPerGroup = kValuePair / kWidth;
    return i / kPerGroup * (2 * kValuePair) + i % kPerGroup * kWidth;
  }
};

template <typename Kv>
PB_INLINE void load_two(const typename Kv::Number* row, int i, Vec& first, Vec& second) {
  if constexpr (Kv::kPaired) {
    const Pairs pairs = load_pairs(row + i * 2 * kWidth);
    first = even(pairs);
    second = odd(pairs);
  } else {
    first = Kv::read(row + Kv::column(i));
    second = Kv::read(row + Kv::column(i) + kWidth);
  }
}

// Returns the scale of n numbers; NaN if one of them is not finite.
inline float int8_scale(const float* numbers, int n) {
  Vec highest = zero();
  for (int i = 0; i < n; i += kWidth) highest = max_or_nan(highest, abs(load_tail(numbers, i, n)));
  const float top = reduce_max_or_nan(highest);
  return top / 127.0f + 0.0f * top;  // 0 times infinity is NaN
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
