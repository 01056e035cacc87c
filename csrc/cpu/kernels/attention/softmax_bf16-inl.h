// Softmax of one query over a segment, for products of bf16 probabilities with values. It is
// optimised, because on AMX it takes longer than the products. Probabilities are rounded to bf16;
// their sum is over the unrounded values, in lanes by position in the segment.
#pragma once

#include "cpu/kernels/vec/vec-inl.h"

namespace pb::cpu::PB_CPU_TARGET {
namespace {

constexpr int kChunk = 32;  // numbers of head_dim per product of scores, keys per product of values

// Returns 2^x for x <= 0: 1 at 0, 0 below -126, NaN for NaN; elsewhere with a relative error of
// 3e-6, a hundredth of the rounding error of bf16. The coefficients have the least maximum relative
// error.
PB_INLINE Vec power_of_2(Vec x) {
  constexpr int kFloor = 0x9;
  const Vec r = _mm512_reduce_ps(x, kFloor);  // x - floor(x)
  Vec p = set1(1.342668664e-2f);
  p = mul_add(p, r, set1(5.224246904e-2f));
  p = mul_add(p, r, set1(2.412802130e-1f));
  p = mul_add(p, r, set1(6.930448413e-1f));
  p = mul_add(p, r, set1(1.0f));
  const __mmask16 keep = _mm512_cmp_ps_mask(x, set1(-126.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(keep, p, x);
}

// Returns a number whose truncation is the nearest bf16; ties are rounded away from zero.
PB_INLINE Vec half_up(Vec x) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)));
}

// The layout of a chunk's probabilities: as f32 in the place of the scores, or as bf16, from the
// start of the chunk's share of half a row on. The bf16 are in pairs of keys k and k + 16, which
// truncation produces almost for free, or in order, for which targets with vdpbf16ps have an
// instruction.
enum class ChunkForm { kF32, kHalvesPaired, kInOrder };

template <ChunkForm kForm>
PB_INLINE void store_chunk(float* row, int chunk, Vec low, Vec high) {
  [[maybe_unused]] auto* numbers = reinterpret_cast<uint16_t*>(row) + chunk * kChunk;
  if constexpr (kForm == ChunkForm::kInOrder) {
    _mm512_store_si512(numbers, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  } else if constexpr (kForm == ChunkForm::kHalvesPaired) {
    store_pairs(numbers, half_up(low), half_up(high));
  } else {
    store(row + chunk * kChunk, odd(_mm512_castps_si512(half_up(low))));
    store(row + chunk * kChunk + kWidth, odd(_mm512_castps_si512(half_up(high))));
  }
}

// Replaces the scores of `row` by probabilities rounded to bf16, for the chunks that contain
// [first, last), with zeros outside of the keys [begin, end), which are not empty.
template <ChunkForm kForm>
inline void softmax_bf16(float* row, int begin, int end, int first, int last, float scale,
                         float* max_out, float* sum_out) {
  const Vec minus_infinity = set1(-__builtin_inff());
  const int first_chunk = begin / kChunk, end_chunk = (end + kChunk - 1) / kChunk;
  for (int key = first_chunk * kChunk; key < begin; key += kWidth) {
    store_n(row + key, minus_infinity, begin - key);
  }
  for (int key = end; key < end_chunk * kChunk; key += kWidth) {
    store_n(row + key, minus_infinity, end_chunk * kChunk - key);
  }
  Vec highest[2] = {minus_infinity, minus_infinity};
  for (int c = first_chunk; c < end_chunk; ++c) {
    highest[0] = max(highest[0], load(row + c * kChunk));
    highest[1] = max(highest[1], load(row + c * kChunk + kWidth));
  }
  const float top = reduce_max(max(highest[0], highest[1]));
  const Vec factor = set1(scale * 1.44269504f);
  const Vec peak = mul(set1(top), factor);
  const auto power = [=](const float* scores) {
    return power_of_2(sub(mul(load(scores), factor), peak));
  };
  for (int c = first / kChunk; c < first_chunk; ++c) store_chunk<kForm>(row, c, zero(), zero());
  Vec sum[2] = {zero(), zero()};
  for (int c = first_chunk; c < end_chunk; ++c) {
    const Vec low = power(row + c * kChunk);
    const Vec high = power(row + c * kChunk + kWidth);
    sum[0] = add(sum[0], low);
    sum[1] = add(sum[1], high);
    store_chunk<kForm>(row, c, low, high);
  }
  for (int c = end_chunk; c < (last + kChunk - 1) / kChunk; ++c) {
    store_chunk<kForm>(row, c, zero(), zero());
  }
  *max_out = top * scale;
  *sum_out = reduce_add(add(sum[0], sum[1]));
}

}  // namespace
}  // namespace pb::cpu::PB_CPU_TARGET
