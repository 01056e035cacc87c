// The numbers that keys and values are kept as: how each is rounded, read back, and where it lies.
//
// int8 has a scale for each key and each value, the greatest magnitude over 127; it is multiplied
// into a score, or into a probability, never into the numbers. f16 holds magnitudes to 65504:
// finite ones beyond are kept as that. What is infinite or NaN makes what is read infinite or NaN,
// whatever the type, so that a sequence gone wrong is seen to be.
#pragma once

#include "cpu/kernels.h"
#include "cpu/rows-inl.h"
#include "cpu/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Kv::Number  as stored
// kPaired     two numbers lie in one lane
// kScaled     a scale goes with each key and each value
// write_n     rounds the first n lanes and stores them next to each other
// key_at      where number d of a key in `slot` lies; value_at  where number d of a value lies
// column      of the i-th two vectors of a row of values: they are its columns from there, and from
//             kSecond further, on

// One vector of numbers after the other.
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
  static PB_INLINE void write_n(float* p, Vec v, int n) { store_n(p, v, n); }
};

struct F16Kv : Plain {
  using Number = uint16_t;
  static PB_INLINE Vec read(const uint16_t* p) { return load_f16(p); }
  static PB_INLINE void write_n(uint16_t* p, Vec v, int n) {
    const Vec held = max(set1(-65504.0f), min(set1(65504.0f), v));
    store_f16_n(p, select_less(abs(v), set1(__builtin_inff()), held, v), n);
  }
};

// Written is a number over its scale.
struct Int8Kv : Plain {
  using Number = int8_t;
  static constexpr bool kScaled = true;
  static PB_INLINE Vec read(const int8_t* p) { return load_int8(p); }
  static PB_INLINE void write_n(int8_t* p, Vec v, int n) {
    const Vec held = max(min(v, set1(127.0f)), set1(-127.0f));  // in this order NaN is 127
    const Vec shift = set1(12582912.0f);  // adding 1.5 * 2^23 leaves a whole number
    store_int8_n(p, sub(add(held, shift), shift), n);
  }
};

// Pairs of neighbours in head_dim in keys, pairs kValuePair apart in values.
struct Bf16Kv {
  using Number = uint16_t;
  static constexpr bool kPaired = true;
  static constexpr bool kScaled = false;
  static constexpr int kSecond = kValuePair;
  static PB_INLINE void write_n(uint16_t* p, Vec v, int n) { store_bf16_n(p, round_to_bf16(v), n); }
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

// The scale of n numbers; NaN where one of them is not finite.
inline float int8_scale(const float* numbers, int n) {
  Vec highest = zero();
  Vec poison = zero();
  for (int i = 0; i < n; i += kWidth) {
    const Vec v = load_tail(numbers, i, n);
    highest = max(highest, abs(v));
    poison = add(poison, mul(v, zero()));
  }
  return reduce_max(highest) / 127.0f + reduce_add(poison);
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
