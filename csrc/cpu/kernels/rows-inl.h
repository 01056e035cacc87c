// Reading and writing rows of numbers, including partial vectors at their end. Only this file knows
// how partial vectors are loaded and stored, and how Activations are laid out.
#pragma once

#include "cpu/dispatch/kernels.h"
#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

// Makes the compiler reload data instead of keeping it, where registers are scarce.
template <typename T>
PB_INLINE void forget(const T*& p) {
  asm("" : "+r"(p));
}

// Loads the elements [i, i + kWidth) of a row of n; those beyond the end are zero.
PB_INLINE Vec load_tail(const float* row, int i, int n) {
  return n - i >= kWidth ? load(row + i) : load_n(row + i, n - i);
}

PB_INLINE void store_tail(float* row, int i, int n, Vec v) {
  if (n - i >= kWidth) {
    store(row + i, v);
  } else {
    store_n(row + i, v, n - i);
  }
}

constexpr int kGroupVectors = kGroupSize / kWidth;

// The rows that products of bf16 weights take: expanded rows if the product expands its operands.
constexpr RowFormat kBf16Row = kBf16Products ? RowFormat::kBf16 : RowFormat::kExpandedBf16;

// Quantises x to the nearest whole numbers of x / scale, where the greatest magnitude of x is 127
// scales. A NaN makes the scale NaN.
PB_INLINE void quantise_group(const Vec (&x)[kGroupVectors], int8_t* numbers, RowGroup* group) {
  Vec greatest = abs(x[0]);
  for (int v = 1; v < kGroupVectors; ++v) greatest = max_or_nan(greatest, abs(x[v]));
  const float top = reduce_max_or_nan(greatest);
  const Vec inverse = top == 0.0f ? zero() : div(set1(127.0f), set1(top));
  Ints sums[2] = {set1_int(0), set1_int(0)};
  for (int v = 0; v < kGroupVectors; ++v) {
    const Ints whole = to_nearest(mul(x[v], inverse));
    Ints& half = sums[2 * v / kGroupVectors];
    half = add_ints(half, whole);
    store_bytes(numbers + v * kWidth, whole);
  }
  group->scale = top * (1.0f / 127.0f);
  for (int h = 0; h < 2; ++h) {  // truncated: the whole numbers of a NaN are arbitrary
    group->halves[h] = static_cast<int16_t>(reduce_add_ints(sums[h]));
  }
  const int sum = group->halves[0] + group->halves[1];
  group->total = group->scale * static_cast<float>(sum);
  group->zero_products = -kRowZeroPoint * sum;
}

// out[begin:end) = at(i), a vector for each i in steps of kWidth from begin, with zeros beyond the
// end.
template <RowFormat kFormat, typename At>
PB_INLINE void write_row(const RowOut& out, int begin, int end, At at) {
  if constexpr (kFormat == RowFormat::kInt8) {
    auto* numbers = static_cast<int8_t*>(out.numbers);
    for (int i = begin; i < end; i += kGroupSize) {
      Vec group[kGroupVectors];
      for (int v = 0; v < kGroupVectors; ++v) {
        group[v] = i + v * kWidth < end ? at(i + v * kWidth) : zero();
      }
      quantise_group(group, numbers + i, out.groups + i / kGroupSize);
    }
  } else {
    for (int i = begin; i < end; i += kWidth) {
      if constexpr (kFormat == RowFormat::kBf16) {
        const int n = end - i < kWidth ? end - i : kWidth;
        store_bf16_n(static_cast<uint16_t*>(out.numbers) + i, round_to_bf16(at(i)), n);
      } else if constexpr (kFormat == RowFormat::kExpandedBf16) {
        store_tail(static_cast<float*>(out.numbers), i, end, round_to_bf16(at(i)));
      } else {
        store_tail(static_cast<float*>(out.numbers), i, end, at(i));
      }
    }
  }
}

// Calls write_row with the row's own format, one of those that this target has.
template <typename At>
PB_INLINE void write_row(const RowOut& out, int begin, int end, At at) {
  if (out.format == RowFormat::kInt8) return write_row<RowFormat::kInt8>(out, begin, end, at);
  if (out.format == kBf16Row) return write_row<kBf16Row>(out, begin, end, at);
  write_row<RowFormat::kF32>(out, begin, end, at);
}

inline void copy_row(const float* x, const RowOut& out, int n) {
  write_row(out, 0, n, [=](int i) { return load_tail(x, i, n); });
}

// The numbers are collected in parts: loading a vector directly after its numbers were stored one
// by one would wait for each store.
inline void permute_row(const float* x, const int32_t* order, const RowOut& out, int n) {
  constexpr int kChunk = 8 * kGroupSize;
  alignas(64) float chunk[kChunk];
  for (int begin = 0; begin < n; begin += kChunk) {
    const int end = n - begin < kChunk ? n : begin + kChunk;
    for (int i = begin; i < end; ++i) chunk[i - begin] = x[order[i]];
    const float* const from = chunk;
    write_row(out, begin, end, [=](int i) { return load_tail(from, i - begin, end - begin); });
  }
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
